"use strict";
// The page of a run in a client of MCP (io.modelcontextprotocol/ui). When the client tells the tool's result, the page
// asks the client for the run's page. Scripts in that would not run: DOMParser makes none.
(() => {
  const waiting = new Map();
  let last = 0;
  const post = (message) => parent.postMessage({ jsonrpc: "2.0", ...message }, "*");
  const ask = (method, params) => new Promise((done, failed) => {
    waiting.set(++last, { done, failed });
    post({ id: last, method, params });
  });
  const themed = (context) => {
    if (context?.theme === "dark" || context?.theme === "light")
      document.documentElement.style.colorScheme = context.theme;
  };
  const fit = () => post({ method: "ui/notifications/size-changed",
    params: { height: document.documentElement.scrollHeight } });

  async function show(result) {
    const id = result?.structuredContent?.runId;
    try {
      const read = await ask("resources/read", { uri: "ui://unitask/runs/" + id });
      const page = new DOMParser().parseFromString(read.contents[0].text, "text/html");
      document.querySelector("main").replaceWith(document.importNode(page.querySelector("main"), true));
    } catch { // a client that reads nothing for a page: the result's own text
      const pre = document.createElement("pre");
      pre.textContent = (result?.content ?? []).map((part) => part.text ?? "").join("\n").slice(0, 1 << 17);
      document.querySelector("main").replaceChildren(pre);
    }
    fit();
  }

  addEventListener("message", ({ source, data }) => {
    if (source !== parent || data?.jsonrpc !== "2.0") return;
    const answered = waiting.get(data.id);
    if (data.method === "ui/notifications/tool-result") show(data.params);
    else if (data.method === "ui/notifications/host-context-changed") themed(data.params);
    else if (data.method !== undefined && data.id !== undefined) post({ id: data.id, result: {} });
    else if (answered) {
      waiting.delete(data.id);
      if (data.error) answered.failed(new Error(data.error.message));
      else answered.done(data.result);
    }
  });

  ask("ui/initialize", { appInfo: { name: "unitask", version: "1" }, appCapabilities: {},
    protocolVersion: "2026-01-26" }).then((host) => {
    themed(host?.hostContext);
    post({ method: "ui/notifications/initialized" });
    fit();
  });
})();
