"use strict";
// Follows a run's output, and reloads pages when they have changed. It writes text nodes only.
(() => {
  const body = document.body, most = 1 << 19, every = 800;
  let touched = 0;
  for (const kind of ["pointerdown", "pointermove", "keydown"])
    addEventListener(kind, () => { touched = Date.now(); });
  const later = (run) => setTimeout(() => run().catch(() => later(run)),
    (run === changed ? 2 : 1) * (document.hidden ? 5 : 1) * every);

  function add(pre, said) {
    if (!said.text && !said.lost) return;
    const near = pre.scrollHeight - pre.scrollTop - pre.clientHeight < 40;
    let text = (said.lost ? "[…]\n" : pre.textContent) + said.text;
    if (text.length > most) text = "[…]\n" + text.slice(-most / 2);
    pre.textContent = text;
    pre.dataset.at = said.next;
    if (near) pre.scrollTop = pre.scrollHeight;
  }

  async function output() {
    const pres = ["stdout", "stderr"].map((id) => document.getElementById(id));
    const query = new URLSearchParams({ id: body.dataset.run });
    for (const pre of pres) query.set(pre.id, pre.dataset.at);
    const res = await fetch("output?" + query);
    if (!res.ok) return later(output);
    const said = await res.json();
    for (const pre of pres) add(pre, said[pre.id]);
    if (said.live) later(output);
    else location.reload();
  }

  async function changed() {
    const res = await fetch(location.href, { headers: { "If-None-Match": body.dataset.tag } });
    if (res.status !== 200) return later(changed);
    // A reload must not move things that the user is about to click, or lose text that the user typed.
    const typed = [...document.querySelectorAll("textarea, input:not([type=hidden])")]
      .some((field) => field.value !== field.defaultValue);
    if (body.dataset.follow === "load" && !typed && Date.now() - touched > 2000) return location.reload();
    const said = document.getElementById("changed");
    if (!said.firstChild) {
      if (wish) notify("The questions have changed.", "changed");
      const link = document.createElement("a");
      link.href = location.href;
      link.textContent = "This page has changed: load it again";
      said.append(link);
    }
    later(changed);
  }

  // Notifications are opt-in, and told while the page is hidden. They are text, too.
  const may = () => window.Notification?.permission === "granted" && localStorage.getItem("notify") === "yes";
  const notify = (text, tag) => may() && document.hidden && new Notification("unitask: a run asks", { body: text, tag });
  const wish = document.getElementById("notify");
  if (wish && window.Notification) {
    const show = () => { wish.textContent = may() ? "Stop notifications" : "Notify me of questions"; };
    wish.onclick = async () => {
      const on = !may() && await Notification.requestPermission() === "granted";
      localStorage.setItem("notify", on ? "yes" : "no");
      show();
    };
    show();
    wish.hidden = false;
    for (const asked of document.querySelectorAll("[data-question]"))
      notify(asked.querySelector("h2").textContent, asked.dataset.question);
  }

  if (body.dataset.live) later(output);
  else if (body.dataset.follow) later(changed);
})();
