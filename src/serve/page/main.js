// Entry point of the page: the form, one column per model, and the selected token, which all columns share.

const view = {
  measure: 'released', scope: 'token',
  index: null,    // index of the selected token; null: the last one
  kept: false,    // whether the token stays selected when the pointer leaves it
  reading: null   // index of the earlier token whose weight is displayed, while a selection is kept
};
let columns = [], stop = null;
const field = id => document.getElementById(id);

function announce(text) {
  field('announce').textContent = text;
}

function fail(error) {
  if (error.status === 401) {
    field('key_field').hidden = false;
    field('key').focus();
  }
  field('error').textContent = error.message;
  field('error').hidden = false;
}

function renderAll() {
  for (const column of columns) column.render(true);
}

function inspect(index, kept = view.kept) {
  Object.assign(view, {index, kept, reading: null});
  for (const column of columns) column.want();
  renderAll();
}

function readWeight(index) {
  view.reading = index;
  renderAll();
}

const tokenOf = event => {
  const token = event.target.closest('.tok[data-index]');
  return token ? Number(token.dataset.index) : null;
};

// Returns the index of the nearest token in the next line of text (if `down`) or in the previous line.
function vertical(column, index, down) {
  const boxes = column.tokens.slice(0, column.drawn).map(({element}) => element.getClientRects()[0]);
  const from = boxes[index], x = from.left + from.width / 2;
  let best = index, distance = Infinity, line = null;
  for (let n = down ? index + 1 : index - 1; n >= 0 && n < boxes.length; n += down ? 1 : -1) {
    const {top, left, width} = boxes[n];
    if (Math.abs(top - from.top) < 4) continue;
    line ??= top;
    if (Math.abs(top - line) > 4) break;
    const far = Math.abs(left + width / 2 - x);
    if (far < distance) [best, distance] = [n, far];
  }
  return best;
}

function moveInText(column, event) {
  const count = column.drawn;
  if (count === 0) return;
  const reading = view.kept && view.index < count;
  const at = Math.min((reading ? view.reading : null) ?? view.index ?? count - 1, count - 1);
  const last = reading ? view.index : count - 1;
  const steps = {
    ArrowLeft: () => at - 1, ArrowRight: () => at + 1, ArrowUp: () => vertical(column, at, false),
    ArrowDown: () => vertical(column, at, true), Home: () => 0, End: () => last
  };
  if (event.key === 'Enter' || event.key === ' ') {
    event.preventDefault();
    inspect(view.index ?? count - 1, !view.kept);
    announce(view.kept ? 'kept' : 'not kept');
    return;
  }
  if (!steps[event.key]) return;
  event.preventDefault();
  const to = Math.min(Math.max(steps[event.key](), 0), last);
  column.tokens[to].element.scrollIntoView({block: 'nearest'});
  if (reading) {
    readWeight(to);
    const weight = column.shown && column.shown.weights ? column.shown.weights[to] : undefined;
    const words = weight === undefined ? '' : weight === 0 ? 'dead' : inDigits(weight);
    announce(`${quoted(column.tokens[to].text)}: ${words}`);
  } else {
    inspect(to);
    announce(`token ${to + 1} ${quoted(column.tokens[to].text)}`);
  }
}

function addColumn(model) {
  const column = new Column(model);
  column.number = columns.length;
  columns.push(column);
  field('columns').append(column.element);
  column.text.addEventListener('pointerover', event => {
    const index = tokenOf(event);
    if (index === null || event.pointerType === 'touch') return;
    if (view.kept) readWeight(index <= view.index ? index : null);
    else inspect(index);
  });
  column.text.addEventListener('pointerleave', () => {
    if (view.kept) readWeight(null);
    else inspect(null);
  });
  column.text.addEventListener('click', event => {
    const index = tokenOf(event);
    if (index !== null) inspect(index, !(view.kept && view.index === index));
  });
  column.text.addEventListener('keydown', event => moveInText(column, event));
  column.render();
}

function showColumns(models) {
  const chosen = [...document.querySelectorAll('#models input:checked')].map(box => box.value);
  columns = [];
  field('columns').replaceChildren();
  Object.assign(view, {index: null, kept: false, reading: null});
  for (const model of models.filter(({id}) => chosen.includes(id))) addColumn(model);
  field('columns').classList.toggle('several', columns.length > 1);
  field('view').hidden = !columns.some(column => column.shape);
  field('run').disabled = columns.length === 0;
}

async function loadModels() {
  field('error').hidden = true;
  const {data} = await api.json('v1/models');
  const box = field('models');
  box.replaceChildren(box.firstElementChild, ...data.map(({id}, n) => {
    const input = make('input', {type: 'checkbox', value: id, checked: n < 2});
    return make('label', {}, input, make('span', {}, id));
  }));
  box.hidden = data.length < 2;
  box.onchange = () => {
    if (stop) stop.abort();
    showColumns(data);
  };
  showColumns(data);
}

async function generate() {
  field('error').hidden = true;
  const number = id => Number(field(id).value);
  const options = {
    prompt: field('prompt').value, max_tokens: number('max_tokens'), temperature: number('temperature'),
    seed: number('seed')
  };
  inspect(null, false);
  const mine = stop = new AbortController();
  field('run').textContent = 'Stop';
  document.body.classList.add('running');
  const results = await Promise.allSettled(columns.map(column => column.generate(options, mine.signal)));
  for (const {reason} of results) {
    if (reason) fail(reason);
  }
  if (stop !== mine) return;
  stop = null;
  field('run').textContent = 'Generate';
  document.body.classList.remove('running');
}

field('form').addEventListener('submit', event => {
  event.preventDefault();
  if (stop) stop.abort();
  else if (columns.length === 0) loadModels().catch(fail);
  else generate();
});
field('prompt').addEventListener('keydown', event => {
  if (event.key === 'Enter' && (event.ctrlKey || event.metaKey)) field('form').requestSubmit();
});
field('key').addEventListener('change', event => {
  api.key = event.target.value.trim();
  loadModels().catch(fail);
});
field('view').addEventListener('change', event => {
  view[event.target.name] = event.target.value;
  renderAll();
});
document.addEventListener('keydown', event => {
  if (event.key !== 'Escape') return;
  if (stop) stop.abort();
  else inspect(null, false);
});
loadModels().catch(fail);
