"use strict";
// A terminal of a session. It sends what the user types, and shows what the machine prints. It ignores the machine's
// sequences for titles, links, the clipboard and the palette.
(() => {
  const said = document.getElementById("said"), place = document.getElementById("terminal");
  // The page's policy forbids style elements. xterm.js makes some: their text becomes sheets of the document.
  const sheets = new Map();
  new MutationObserver(() => {
    for (const style of place.querySelectorAll("style")) {
      if (!sheets.has(style)) sheets.set(style, new CSSStyleSheet());
      sheets.get(style).replaceSync(style.textContent);
    }
    document.adoptedStyleSheets = [...sheets].filter(([style]) => style.isConnected).map(([, sheet]) => sheet);
  }).observe(place, { childList: true, subtree: true, characterData: true });

  const dark = matchMedia("(prefers-color-scheme: dark)").matches;
  const term = new Terminal({ scrollback: 5000, cursorBlink: false, linkHandler: null, minimumContrastRatio: 4.5,
    theme: dark ? { background: "#161616", foreground: "#eeeeee", cursor: "#eeeeee" }
      : { background: "#ffffff", foreground: "#111111", cursor: "#111111", selectionBackground: "#b5d0ff" } });
  for (const code of [0, 1, 2, 4, 7, 8, 9, 10, 11, 12, 52, 104, 110, 111, 112, 777, 1337])
    term.parser.registerOscHandler(code, () => true);
  term.open(place);

  const at = new URL("shell?" + new URLSearchParams({ session: document.body.dataset.session }), location.href);
  at.protocol = "ws:";
  const socket = new WebSocket(at);
  socket.binaryType = "arraybuffer";
  const send = (text) => { if (socket.readyState === WebSocket.OPEN) socket.send(text); };
  const fit = () => {
    const cell = place.querySelector(".xterm-screen").getBoundingClientRect();
    const columns = Math.floor((place.clientWidth - 16) / (cell.width / term.cols));
    const rows = Math.floor((innerHeight - place.getBoundingClientRect().top - 60) / (cell.height / term.rows));
    if (columns > 0 && isFinite(columns + rows)) term.resize(Math.min(columns, 500), Math.min(Math.max(rows, 8), 200));
  };
  term.onResize(({ cols, rows }) => send(JSON.stringify({ resize: [cols, rows] })));
  const bytes = new TextEncoder();
  term.onData((text) => {
    for (let all = bytes.encode(text); all.length > 0; all = all.subarray(8192)) send(all.subarray(0, 8192));
  });
  term.onBinary((text) => send(Uint8Array.from(text, (c) => c.charCodeAt(0))));
  socket.onopen = () => {
    fit();
    send(JSON.stringify({ resize: [term.cols, term.rows] }));
    term.focus();
  };
  socket.onmessage = ({ data }) => {
    if (typeof data !== "string") {
      term.write(new Uint8Array(data), () => send(JSON.stringify({ taken: data.byteLength })));
      return;
    }
    const end = JSON.parse(data);
    said.textContent = end.error ? "It ended: " + end.error : "The shell has ended, exit code " + end.exitCode + ".";
  };
  socket.onclose = ({ reason }) => {
    term.options.disableStdin = true;
    said.textContent ||= "The terminal is closed" + (reason ? ": " + reason : ".") + " Load the page again for a new one.";
  };
  addEventListener("resize", fit);
})();
