'use strict';

// Client for this server's HTTP API.
class ApiFailure extends Error {
  constructor(status, message) {
    super(message);
    this.status = status;
  }
}

const api = {
  key: '',

  async send(path, body, signal) {
    const headers = {};
    if (this.key) headers.Authorization = `Bearer ${this.key}`;
    if (body) headers['Content-Type'] = 'application/json';
    const response = await fetch(path, {
      method: body ? 'POST' : 'GET', headers, body: body && JSON.stringify(body), signal, cache: 'no-store'
    });
    if (response.ok) return response;
    let message = `status ${response.status}`;
    try {
      message = (await response.json()).error.message;
    } catch (_) {
      // The body is not JSON: the response comes from a proxy and not from this server.
    }
    throw new ApiFailure(response.status, message);
  },

  async json(path, body, signal) {
    return (await this.send(path, body, signal)).json();
  },

  // Yields the parsed events of a stream until [DONE].
  async *events(path, body, signal) {
    const reader = (await this.send(path, body, signal)).body.pipeThrough(new TextDecoderStream()).getReader();
    for (let rest = '';;) {
      const {value, done} = await reader.read();
      if (done) throw new ApiFailure(0, 'the server ended the stream too early');
      const parts = (rest + value).split('\n\n');
      rest = parts.pop();
      for (const part of parts) {
        const data = part.slice('data: '.length);
        if (data === '[DONE]') return;
        const event = JSON.parse(data);
        if (event.error) throw new ApiFailure(0, event.error.message);
        yield event;
      }
    }
  }
};
