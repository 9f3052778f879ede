// One column of the page: a model's text, its heads and the attention of the selected token.

const kNumbers = (1 << 20) - 1024;  // maximum number of values in one response of /v1/attention

class Column {
  constructor(model) {
    this.model = model;
    this.shape = model.attention;  // undefined: the model has no attention weights
    this.head = {layer: null, head: null};
    this.drawnAt = this.cost = 0;  // time and duration of the last redraw, in milliseconds
    this.clear();
    this.build();
  }

  clear() {
    this.run = (this.run || 0) + 1;  // number of the current text; responses for earlier texts are discarded
    this.tokens = [];                // tokens of the text: {id, text, logprob, prompt, element}
    this.drawn = 0;                  // number of tokens that have an HTML element
    this.stats = [];                 // attention statistics of the first tokens, as received so far
    this.rows = new Map();           // maps "token/layer/head" to the attention weights of this query token
    this.shown = null;               // {index, head, weights}: the weights that shade the tokens of the text
    this.running = this.asking = false;
    this.note = '';
  }

  build() {
    const {id} = this.model;
    this.text = make('div', {
      className: 'text', tabIndex: 0, role: 'listbox', 'aria-label': `Tokens of ${id}`,
      'aria-describedby': 'hint'
    });
    this.status = make('p', {className: 'status', role: 'status'});
    this.about = make('p', {className: 'about'});
    this.facts = make('dl', {className: 'facts'});
    this.top = make('ol', {className: 'weights', 'aria-label': 'Largest weights'});
    this.gridTitle = make('h3');
    this.grid = make('div', {className: 'grid', role: 'grid', 'aria-label': `Heads of ${id}`});
    this.chart = make('figure', {className: 'chart'});
    const panels = this.shape ?
      make('div', {className: 'panels'},
           make('section', {className: 'token'}, this.about, this.facts, this.top),
           make('section', {className: 'heads'}, this.gridTitle, this.grid, this.chart)) :
      make('p', {className: 'none'}, 'This model has no attention weights to show.');
    this.element = make('article', {className: 'model', 'aria-label': id},
                        make('header', {}, make('h2', {}, id), this.status),
                        make('div', {className: 'body'}, this.text, panels));
    if (this.shape) this.buildGrid();
  }

  buildGrid() {
    const {layers, heads} = this.shape;
    this.cells = [];
    this.grid.style.setProperty('--heads', heads);
    this.grid.classList.toggle('dense', heads > 8);
    for (let layer = -1; layer < layers; ++layer) {
      const row = make('div', {role: 'row', className: 'row'});
      for (let head = -1; head < heads; ++head) {
        const choice = {layer: layer < 0 ? null : layer, head: head < 0 ? null : head};
        if (layer < 0 && head >= 0) {
          row.append(make('span', {className: 'name', role: 'columnheader'}, `${head}`));
          continue;
        }
        const label = layer < 0 ? 'all' : head < 0 ? `${layer}` : '';
        const cell = make('button', {type: 'button', role: 'gridcell', tabIndex: -1,
                                     className: head < 0 ? 'cell name' : 'cell'}, label);
        cell.choice = choice;
        if (head >= 0) cell.dataset.head = `${layer},${head}`;
        this.cells.push(cell);
        row.append(cell);
      }
      this.grid.append(row);
    }
    this.grid.addEventListener('click', event => {
      const cell = event.target.closest('.cell');
      if (cell) this.choose(cell.choice);
    });
    this.grid.addEventListener('keydown', event => this.moveInGrid(event));
  }

  choose(head) {
    this.head = head;
    this.want();
    this.render(true);
  }

  moveInGrid(event) {
    const {layers, heads} = this.shape;
    const layer = this.head.layer ?? -1, head = this.head.head ?? -1;
    const to = {
      ArrowUp: [layer - 1, head], ArrowDown: [layer + 1, head],
      ArrowLeft: [layer, head - 1], ArrowRight: [layer, head + 1], Home: [-1, -1]
    }[event.key];
    if (!to) return;
    event.preventDefault();
    const row = Math.min(Math.max(to[0], -1), layers - 1);
    const column = row < 0 ? -1 : Math.min(Math.max(to[1], -1), heads - 1);
    this.choose({layer: row < 0 ? null : row, head: column < 0 ? null : column});
    this.cells.find(({choice}) => choice.layer === this.head.layer && choice.head === this.head.head).focus();
    const value = this.valueAt(this.head);
    announce(`${headName(this.head)}${value === null ? '' : `: ${measures[view.measure].title} ${inDigits(value)}`}`);
  }

  // Functions that generate text.

  async generate(options, signal) {
    this.clear();
    this.text.replaceChildren();
    this.running = true;
    this.render();
    const {id} = this.model;
    const begin = performance.now();
    let count = 0, reason = '';
    const progress = () => `${count} tokens in ${((performance.now() - begin) / 1000).toFixed(1)} s`;
    try {
      const special = await this.specialTokens(signal);
      const read = await api.json('tokenize', {model: id, prompt: options.prompt, return_token_strs: true}, signal);
      if (read.tokens.length === 0) throw new ApiFailure(0, 'the prompt is empty');
      this.add(read.tokens.map((token, n) => ({id: token, text: special[token] ?? read.token_strs[n], prompt: true})));
      this.pump();
      const request = {
        model: id, prompt: read.tokens, max_tokens: options.max_tokens, temperature: options.temperature,
        seed: options.seed, logprobs: 0, return_token_ids: true, stream: true
      };
      for await (const event of api.events('v1/completions', request, signal)) {
        const [choice] = event.choices;
        if (!choice) continue;
        const {tokens = [], token_logprobs = []} = choice.logprobs || {};
        this.add(tokens.map((text, n) => ({
          id: choice.token_ids[n], text: special[choice.token_ids[n]] ?? text, logprob: token_logprobs[n],
          prompt: false
        })));
        count += tokens.length;
        if (choice.finish_reason) reason = choice.finish_reason;
        this.say(progress());
        this.pump();
      }
      this.say(progress() + (reason === 'stop' ? ', the model ended the text' : ''));
    } catch (error) {
      if (error.name === 'AbortError') {
        this.say(`${progress()}, stopped`);
      } else {
        this.say(`${progress()}; ${error.message}`);
        throw error;
      }
    } finally {
      this.running = false;
      this.want();
      this.render(true);
    }
  }

  async specialTokens(signal) {
    const info = await api.json(`tokenizer_info?model=${encodeURIComponent(this.model.id)}`, null, signal);
    const out = {};
    if (info.bos_token_id !== null) out[info.bos_token_id] = '⟨BOS⟩';
    if (info.eos_token_id !== null) out[info.eos_token_id] = '⟨EOS⟩';
    return out;
  }

  say(status) {
    this.status.textContent = status;
  }

  add(tokens) {
    this.tokens.push(...tokens);
    this.render();
  }

  // Appends the tokens that have arrived since the last redraw.
  drawNewTokens() {
    if (this.drawn === this.tokens.length) return;
    const {text} = this, atEnd = text.scrollHeight - text.scrollTop - text.clientHeight < 24;
    const fresh = this.tokens.slice(this.drawn).map((token, n) => {
      token.element = make('span', {
        className: token.prompt ? 'tok prompt' : 'tok', role: 'option', id: `${this.number}-${this.drawn + n}`
      }, printed(token.text) || `⟨${token.id}⟩`);
      token.element.dataset.index = this.drawn + n;
      return token.element;
    });
    this.drawn = this.tokens.length;
    text.append(...fresh);
    if (atEnd && view.index === null) text.scrollTop = text.scrollHeight;
  }

  // Functions that request and store attention statistics.

  // Returns the index of the token whose attention is displayed: the selected token or, if no token is selected, the
  // last token within the limit of the server. Returns -1 if the selected token is beyond this limit.
  target() {
    const last = Math.min(this.tokens.length, this.shape.max_tokens) - 1;
    return view.index === null ? last : view.index <= last ? view.index : -1;
  }

  rowKey(index, {layer, head}) { return `${index}/${layer}/${head}`; }

  // Returns the parameters of the next request to /v1/attention, or null if none is needed. While the text grows, one
  // request covers all new tokens.
  next() {
    const {layers, heads, max_tokens} = this.shape;
    const known = this.stats.length, count = Math.min(this.tokens.length, max_tokens);
    const target = this.target();
    const missing = target >= 0 && !this.rows.has(this.rowKey(target, this.head));
    const most = Math.max(1, Math.floor(kNumbers / (3 * layers * heads)));  // maximum number of tokens per response
    if (missing && view.index !== null) {
      return {first: target - known < most ? Math.min(target, known) : target, end: target + 1, row: true};
    }
    if (known < count) {
      const end = Math.min(count, known + most);
      return {first: known, end, row: end === count, background: true};
    }
    return missing ? {first: target, end: target + 1, row: true} : null;
  }

  want() {
    if (this.wake) this.wake();
    this.pump();
  }

  // Sends one request at a time. After a background request (one that the user does not wait for), it pauses while text
  // is generated, because attention requests delay the generation.
  async pump() {
    if (!this.shape || this.asking) return;
    this.asking = true;
    const {run} = this;
    for (let job = this.next(); job && run === this.run; job = this.next()) {
      const begin = performance.now(), {head} = this;
      try {
        const answer = await api.json('v1/attention', {
          model: this.model.id, tokens: this.tokens.slice(0, job.end).map(token => token.id), first: job.first,
          rows: job.row ? [[head.layer, head.head]] : []
        });
        if (run !== this.run) return;
        this.take(answer, head);
      } catch (error) {
        if (run !== this.run) return;
        fail(error);
        break;
      }
      if (job.background && this.running) {
        const rest = Math.max(60, 3 * (performance.now() - begin));
        await Promise.race([pause(rest), new Promise(resolve => { this.wake = resolve; })]);
        if (run !== this.run) return;
      }
    }
    this.asking = false;
  }

  take(answer, head) {
    answer.released.forEach((released, n) => {
      const index = answer.first + n;
      if (index > this.stats.length) return;
      this.stats[index] = {released, sink: answer.sink[n], alive: answer.alive[n], keys: index + 1};
    });
    for (const {weights} of answer.rows) this.rows.set(this.rowKey(answer.count - 1, head), weights);
    if (this.rows.size > 4096) this.rows.delete(this.rows.keys().next().value);
    this.render(view.index !== null);
  }

  // Functions that draw the column. Statistics of a layer without attention are null.

  // Returns the value of a measure (released mass, sink or alive) of one head at one token. If the layer or the head is
  // null, returns the mean over all selected heads.
  measured(measure, stats, {layer, head}) {
    if (layer !== null && head !== null) {
      return stats.released[layer][head] === null ? null : measures[measure].of(stats, layer, head);
    }
    const known = stats.means ??= {}, key = `${measure}/${layer}`;
    if (known[key] === undefined) known[key] = this.meanOf(measure, stats, layer);
    return known[key];
  }

  meanOf(measure, stats, layer) {
    const {layers, heads} = this.shape, values = [];
    for (let l = layer ?? 0; l <= (layer ?? layers - 1); ++l) {
      for (let h = 0; h < heads; ++h) {
        if (stats.released[l][h] !== null) values.push(measures[measure].of(stats, l, h));
      }
    }
    return values.length > 0 ? mean(values) : null;
  }

  valueAt(head) {
    const index = this.shown ? this.shown.index : -1;
    const of = view.scope === 'text' ? this.stats : this.stats[index] ? [this.stats[index]] : [];
    const values = of.map(stats => this.measured(view.measure, stats, head)).filter(value => value !== null);
    return values.length > 0 ? mean(values) : null;
  }

  // A growing text is redrawn at most ten times per second and for at most a quarter of the time, so that the page
  // stays responsive. atOnce: redraw immediately because the user waits.
  render(atOnce = false) {
    if (this.drawing && !(atOnce && this.timer)) return;
    clearTimeout(this.timer);
    this.drawing = true;
    const rest = this.running && !atOnce ? this.drawnAt + Math.max(100, 4 * this.cost) - performance.now() : 0;
    this.timer = setTimeout(() => {
      this.timer = null;
      requestAnimationFrame(() => this.drawAll());
    }, Math.max(0, rest));
  }

  drawAll() {
    this.drawing = false;
    const begin = this.drawnAt = performance.now();
    setTimeout(() => { this.cost = performance.now() - begin; });  // includes the time for layout in the browser
    this.drawNewTokens();
    if (!this.shape) return;
    const target = this.target(), weights = this.rows.get(this.rowKey(target, this.head));
    if (weights !== undefined) {
      this.shown = {index: target, head: this.head, weights};
    } else if (this.shown && this.shown.index >= this.tokens.length) {
      this.shown = null;
    }
    this.renderText();
    this.renderToken();
    this.renderGrid();
    this.renderChart();
  }

  renderText() {
    const {shown} = this, cursor = view.reading ?? view.index;
    const inspecting = view.index !== null;
    this.tokens.forEach((token, index) => {
      const weight = shown && shown.weights && index < shown.weights.length ? shown.weights[index] : null;
      const query = shown !== null && index === shown.index;
      const names = {
        prompt: token.prompt, dead: weight === 0 && !query, strong: weight > 0.4,
        later: inspecting && shown !== null && index > shown.index, query, kept: query && view.kept,
        cursor: index === cursor
      };
      const name = ['tok', ...Object.keys(names).filter(key => names[key])].join(' ');
      if (name === token.name && weight === token.weight) return;  // nothing to update, as for most elements
      const {element} = token;
      if (name !== token.name) element.className = name;
      if (weight !== token.weight) {
        element.style.setProperty('--w', weight ? (Math.min(weight, 1) ** 0.4).toFixed(3) : 0);
        if (weight === null) delete element.dataset.weight;
        else element.dataset.weight = weight;
      }
      element.setAttribute('aria-selected', query);
      Object.assign(token, {name, weight});
    });
    const active = this.tokens[cursor ?? this.drawn - 1];
    if (active) this.text.setAttribute('aria-activedescendant', active.element.id);
  }

  renderToken() {
    const {shown} = this;
    this.facts.hidden = this.top.hidden = !shown;
    if (!shown) {
      const beyond = view.index !== null && view.index >= this.shape.max_tokens;
      this.about.textContent = beyond ? `Attention is shown for the first ${this.shape.max_tokens} tokens.` :
                               this.tokens.length > 0 ? 'Reading …' : '';
      return;
    }
    const {index, head, weights} = shown, token = this.tokens[index];
    const chance = token.logprob == null ? 'of the prompt' : `probability ${Math.exp(token.logprob).toFixed(3)}`;
    this.about.replaceChildren(make('b', {}, quoted(token.text)), ` token ${index + 1}, ${chance}`, make('br'),
                               `Weights of ${headName(head)}`);
    const stats = this.stats[index];
    const alive = weights ? weights.filter(weight => weight > 0).length : null;
    const fact = (name, value, title) =>
      make('div', {className: name}, make('dt', {}, title), make('dd', {}, value === null ? '–' : value));
    const text = value => value === null ? null : value.toFixed(4);
    this.facts.replaceChildren(
      fact('alive', alive === null ? null : `${alive} of ${index + 1}`, head.head === null ? 'alive in any' : 'alive'),
      fact('released', stats ? text(this.measured('released', stats, head)) : null, 'released'),
      fact('sink', stats ? text(this.measured('sink', stats, head)) : null, 'sink'));
    this.renderTop();
  }

  renderTop() {
    const {weights} = this.shown;
    if (!weights) {
      this.top.replaceChildren(make('li', {}, 'This layer has no attention.'));
      return;
    }
    const order = [...weights.keys()].filter(n => weights[n] > 0).sort((a, b) => weights[b] - weights[a] || a - b);
    const listed = order.slice(0, 6);
    const read = view.reading;
    if (read !== null && read < weights.length && !listed.includes(read)) listed.splice(5, 1, read);
    this.top.replaceChildren(...listed.map(n => {
      const bar = make('span', {className: 'bar'});
      bar.style.setProperty('--w', Math.min(weights[n], 1));
      return make('li', {className: n === read ? 'read' : ''}, make('span', {className: 'place'}, `${n + 1}`),
                  make('span', {className: 'word'}, quoted(this.tokens[n].text)), bar,
                  make('span', {className: 'number'}, weights[n] === 0 ? 'dead' : inDigits(weights[n])));
    }));
  }

  renderGrid() {
    const {title} = measures[view.measure], {shown} = this;
    const where = view.scope === 'text' ? `mean of ${this.stats.length}` : shown ? `token ${shown.index + 1}` : '';
    this.gridTitle.replaceChildren(make('span', {}, where ? `${title}, ${where}` : title),
                                   make('span', {className: 'axes'}, 'layer ↓ head →'));
    this.grid.dataset.measure = view.measure;
    for (const cell of this.cells) {
      const {layer, head} = cell.choice;
      const chosen = layer === this.head.layer && head === this.head.head;
      const value = this.valueAt(cell.choice);
      cell.classList.toggle('chosen', chosen);
      cell.tabIndex = chosen ? 0 : -1;
      cell.setAttribute('aria-selected', chosen);
      const words = value === null ? 'no value' : inDigits(value);
      cell.setAttribute('aria-label', `${headName(cell.choice)}: ${title} ${words}`);
      cell.title = `${headName(cell.choice)}: ${words}`;
      if (head === null) continue;
      cell.style.setProperty('--w', value === null ? 0 : Math.min(Math.max(value, 0), 1).toFixed(3));
      cell.classList.toggle('strong', value > 0.55);
      cell.classList.toggle('full', value > 0.75);
      cell.classList.toggle('empty', value === null && this.stats.length > 0);
      cell.dataset.value = value ?? '';
      cell.textContent = value === null ? '' : value.toFixed(2).replace(/^0/, '');
    }
  }

  // Plots the released mass, the sink weight and the share of keys with nonzero weight (alive) of the selected head for
  // each token.
  renderChart() {
    const count = this.stats.length, width = Math.max(count - 1, 1);
    const lines = Object.keys(measures).map(measure => {
      const points = this.stats.map((stats, n) => [n, this.measured(measure, stats, this.head)])
        .filter(([, value]) => value !== null)
        .map(([n, value]) => `${n},${(1 - Math.min(Math.max(value, 0), 1)).toFixed(4)}`);
      return draw('polyline', {class: measure, points: points.join(' ')});
    });
    const marks = [0, 0.5, 1].map(y => draw('line', {class: 'mark', x1: 0, x2: width, y1: y, y2: y}));
    if (this.shown) {
      const {index} = this.shown;
      marks.push(draw('line', {class: 'at', x1: index, x2: index, y1: 0, y2: 1}));
    }
    const picture = draw('svg', {viewBox: `0 0 ${width} 1`, preserveAspectRatio: 'none', role: 'img',
                                 'aria-label': `${headName(this.head)}: three measures over ${count} tokens`},
                         ...marks, ...lines);
    const key = Object.keys(measures).map(name => make('span', {className: name}, name));
    const name = headName(this.head);
    const part = this.drawn > this.shape.max_tokens ? `the first ${this.shape.max_tokens} tokens` : 'token by token';
    this.chart.replaceChildren(make('h3', {}, `${name[0].toUpperCase()}${name.slice(1)}, ${part}`), picture,
                               make('figcaption', {}, ...key));
  }
}
