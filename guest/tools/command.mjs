// unitask-tool for images without bash.
import { request } from 'node:http';

const HOST = '10.0.2.3';
const KEEP_ALIVE_MS = 1000;
const USAGE = 'usage: unitask-tool SERVER.TOOL [JSON] | search [TEXT] | describe SERVER.TOOL';
const CUT = 'unitask-tool: the call was cut off: the session was paused or forked, or the host ended it';

const [name = '', text = ''] = process.argv.slice(2);
const dot = name.indexOf('.');
const quote = encodeURIComponent;
const fail = (why, code = 1) => {
  process.exitCode = code;
  process.stderr.write(why + '\n');
};
let method = 'GET', path, body = '';
if (name === 'search') path = `/search?q=${quote(text)}`;
else if (name === 'describe') path = `/describe?name=${quote(text)}`;
else if (dot > 0 && dot < name.length - 1) {
  path = `/call/${quote(name.slice(0, dot))}/${quote(name.slice(dot + 1))}`;
  [method, body] = ['POST', text || '{}'];
}
if (!path) fail(USAGE, 2);
else {
  const headers = { accept: 'text/plain', 'content-length': Buffer.byteLength(body), connection: 'close' };
  const call = request({ host: HOST, method, path, headers, agent: false }, async (answer) => {
    const parts = [];
    try {
      for await (const part of answer) parts.push(part);
    } catch {
      return fail(CUT);
    }
    const said = Buffer.concat(parts).toString();
    if (answer.statusCode === 200) process.stdout.write(said + '\n');
    else fail('unitask-tool: ' + said);
  });
  call.on('error', () => fail(CUT));
  call.on('socket', (socket) => socket.setKeepAlive(true, KEEP_ALIVE_MS));
  call.end(body);
}
