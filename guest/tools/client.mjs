// The module unitask:tools. Each call is one request to the host, on a connection of its own. A pause or
// a fork of the machine breaks connections, and a call in progress then fails (code "cut").
import { request } from 'node:http';
import { createWriteStream } from 'node:fs';
import { mkdir } from 'node:fs/promises';
import { pipeline } from 'node:stream/promises';

const HOST = '10.0.2.3';
const LARGE_DIR = '/tmp/unitask-tools';
const KEEP_ALIVE_MS = 1000;
let files = 0;

export class ToolError extends Error {
  constructor(code, message, server, tool) {
    super(message);
    this.name = 'ToolError';
    Object.assign(this, { code, server, tool });
  }
}

async function send(method, path, body, server, tool, signal) {
  let response;
  try {
    response = await new Promise((resolve, reject) => {
      const headers = { connection: 'close' };
      if (body !== undefined) headers['content-length'] = Buffer.byteLength(body);
      const req = request({ host: HOST, port: 80, method, path, headers, signal, agent: false }, resolve);
      req.on('error', reject);
      req.on('socket', (s) => s.setKeepAlive(true, KEEP_ALIVE_MS));
      req.end(body);
    });
    if (response.headers['unitask-large']) {
      await mkdir(LARGE_DIR, { recursive: true });
      const file = `${LARGE_DIR}/${process.pid}-${++files}.json`;
      await pipeline(response, createWriteStream(file, { flags: 'wx' }));
      return { file, bytes: Number(response.headers['content-length']) };
    }
    const parts = [];
    for await (const part of response) parts.push(part);
    response = JSON.parse(Buffer.concat(parts).toString());
  } catch (e) {
    if (signal?.aborted) throw signal.reason;
    throw new ToolError('cut', `the call was cut off: the session was paused or forked, or the host ended it (${e.message})`, server, tool);
  }
  const { error } = response;
  if (error) throw new ToolError(error.code, error.message, server, tool);
  return response.value;
}

function call(server, tool, args = {}, { signal } = {}) {
  if (signal?.aborted) return Promise.reject(signal.reason);
  const path = `/call/${encodeURIComponent(server)}/${encodeURIComponent(tool)}`;
  return send('POST', path, JSON.stringify(args), server, tool, signal);
}

// server returns an object with a method for each tool. In a method's name, _ replaces all characters
// but letters, digits and _. The method call takes a tool's exact name.
function server(name) {
  return new Proxy(Object.create(null), {
    get(_, key) {
      if (typeof key !== 'string' || key === 'then' || key === 'toJSON') return undefined;
      if (key === 'call') return (tool, args, options) => call(name, tool, args, options);
      const tools = INDEX.get(name);
      const tool = tools.includes(key) ? key : tools.find((t) => t.replace(/[^A-Za-z0-9_]/g, '_') === key);
      return (args, options) => call(name, tool ?? key, args, options);
    },
    ownKeys: () => INDEX.get(name),
    getOwnPropertyDescriptor: () => ({ enumerable: true, configurable: true }),
  });
}

export const tools = Object.freeze({
  search: (text = '') => send('GET', `/search?q=${encodeURIComponent(text)}`),
  describe: (name) => send('GET', `/describe?name=${encodeURIComponent(name)}`),
});
