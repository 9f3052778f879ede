// Drawing functions that several parts of the page use.
function make(tag, properties = {}, ...children) {
  const out = document.createElement(tag);
  for (const [name, value] of Object.entries(properties)) {
    if (name in out && !name.startsWith('aria')) out[name] = value;
    else out.setAttribute(name, value);
  }
  out.append(...children);
  return out;
}

function draw(tag, attributes, ...children) {
  const out = document.createElementNS('http://www.w3.org/2000/svg', tag);
  for (const [name, value] of Object.entries(attributes)) out.setAttribute(name, value);
  out.append(...children);
  return out;
}

const measures = {
  released: {title: 'Released mass', of: (stats, layer, head) => stats.released[layer][head]},
  sink: {title: 'Sink', of: (stats, layer, head) => stats.sink[layer][head]},
  // The number of keys with nonzero weight is divided by the number of keys, so that all measures range from 0 to 1.
  alive: {title: 'Alive', of: (stats, layer, head) => stats.alive[layer][head] / stats.keys}
};

const mean = values => values.reduce((sum, value) => sum + value, 0) / values.length;

function inDigits(value) {
  if (value === 0) return '0';
  return Math.abs(value) < 0.0001 ? value.toExponential(1) : value.toFixed(4);
}

// Returns a token's text with invisible characters (such as tabs) replaced by visible ones.
function printed(text) {
  if (text.startsWith('bytes:')) return `‹${text.slice('bytes:'.length).replaceAll('\\x', ' ').trim()}›`;
  const hex = sign => `‹${sign.codePointAt(0).toString(16).padStart(2, '0')}›`;
  return text.replaceAll('\n', '⏎\n').replaceAll('\t', '⇥').replace(/[\x00-\x09\x0b-\x1f\x7f]/g, hex);
}

const quoted = text => `“${printed(text).trim() || '␣'}”`;

const headName = ({layer, head}) =>
  layer === null ? 'all heads' : head === null ? `layer ${layer}` : `layer ${layer}, head ${head}`;

const pause = milliseconds => new Promise(resolve => setTimeout(resolve, milliseconds));
