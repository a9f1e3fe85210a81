// Pages are complete without this. It swaps the parts that changed, counts down, and knows some keys.
(() => {
  const doc = document, body = doc.body, live = doc.getElementById("live"), said = doc.getElementById("said");
  let source, again, gone = false, heard = Date.now(), ahead = 0, problems = null;

  const span = (ms) => {
    const s = ms / 1000;
    if (s < 10) return s.toFixed(1) + " s";
    if (s < 60) return Math.floor(s) + " s";
    if (s < 3600) return Math.floor(s / 60) + " min " + String(Math.floor(s % 60)).padStart(2, "0") + " s";
    return Math.floor(s / 3600) + " h " + String(Math.floor(s / 60) % 60).padStart(2, "0") + " min";
  };
  const tick = () => {
    const now = Date.now() + ahead;
    for (const el of doc.querySelectorAll("[data-due]")) {
      const left = el.dataset.due - now;
      el.textContent = left > 0 ? "in " + span(left) : "due";
    }
    for (const el of doc.querySelectorAll("[data-since]")) el.textContent = span(Math.max(0, now - el.dataset.since));
    if (live && body.dataset.view && (gone || Date.now() - heard > 5000)) {
      live.classList.add("off");
      live.lastChild.textContent = "no word for " + span(Date.now() - heard);
    }
  };
  const clock = (now) => { ahead = now - Date.now(); };
  const typing = () => doc.activeElement && doc.activeElement.matches("input,textarea,select");
  // What somebody types into, selects or points at stays as it is.
  const busy = (el) => {
    const pick = getSelection();
    return (typing() && el.contains(doc.activeElement))
      || (pick && !pick.isCollapsed && el.contains(pick.anchorNode))
      || (el.dataset.calm !== undefined ? el.matches(":hover") : el.querySelector("a:hover,button:hover"));
  };
  // What a link or a button does, and to what: the focus stays with that, wherever it stands.
  const deed = (el) => {
    const form = el.closest("form");
    if (!form) return el.getAttribute("href") || el.textContent;
    const of = [...form.elements].filter((one) => one.name !== "token").map((one) => one.name + "=" + one.value);
    return form.getAttribute("action") + "?" + of.join("&");
  };
  const swap = (el, html) => {
    const at = doc.activeElement, all = () => [...el.querySelectorAll("a[href],button")];
    const held = el.contains(at) && all().includes(at), what = held && deed(at), text = held && at.textContent;
    const like = () => all().filter((one) => deed(one) === what);
    const named = () => all().filter((one) => one.matches("a") && one.textContent === text);
    const nth = held && like().indexOf(at), alone = held && named().length === 1;
    el.innerHTML = html;
    if (!held) return;
    const same = like(), links = named();
    // The next page is elsewhere by now, and still the next one.
    const to = same[nth] || same[0] || (alone && links.length === 1 && links[0]);
    // What it was on is gone: on nothing that a key would press, but where Tab goes on from.
    if (!to) el.tabIndex = -1;
    (to || el).focus({ preventScroll: true });
  };
  const take = (event) => {
    const news = JSON.parse(event.data);
    heard = Date.now();
    gone = false;
    clock(news.now);
    if (live) { live.classList.remove("off"); live.lastChild.textContent = "live · " + news.time; }
    for (const [id, html] of Object.entries(news.parts)) {
      const el = doc.getElementById(id);
      if (el && !busy(el)) swap(el, html);
    }
    if (said && news.problems !== undefined) {
      if (problems !== null && news.problems > problems) said.textContent = news.problems + " things need a look";
      problems = news.problems;
    }
    tick();
  };
  const open = () => {
    if (source || doc.hidden || !body.dataset.view) return;
    clearTimeout(again);
    source = new EventSource("/events?view=" + encodeURIComponent(body.dataset.view));
    source.onmessage = take;
    source.onerror = () => {
      if (source && source.readyState === 2) lost();
    };
  };
  const close = () => { if (source) source.close(); source = null; };
  // It was refused: too many follow already, the session has ended, or something between here and there
  // answers. It is tried again, and what is shown meanwhile says so.
  const lost = () => {
    close();
    gone = true;
    tick();
    again = setTimeout(() => {
      if (doc.hidden) return;
      if (typing()) return open();
      // A process that is away must not leave the page of an error here.
      fetch(location.href, { method: "HEAD" }).then((answer) => { if (answer.ok) location.reload(); else open(); }, open);
    }, 15000);
  };
  doc.addEventListener("visibilitychange", () => {
    if (doc.hidden) close(); else { heard = Date.now(); open(); }
  });
  addEventListener("pagehide", close);

  const pages = { o: "/", g: "/groups", d: "/dead-letters", t: "/trace", s: "/send", a: "/audit", f: "/files", b: "/outbox" };
  let went = 0;
  doc.addEventListener("keydown", (event) => {
    if (event.ctrlKey || event.metaKey || event.altKey || event.target.matches("input,textarea,select")) return;
    if (event.key === "/") { const q = doc.getElementById("q"); if (q) { event.preventDefault(); q.focus(); } }
    else if (event.key === "g" && Date.now() - went > 1000) went = Date.now();
    else if (Date.now() - went < 1000 && pages[event.key]) location.href = pages[event.key];
  });
  doc.addEventListener("submit", (event) => {
    if (event.target.method === "post") setTimeout(() => { for (const b of event.target.querySelectorAll("button")) b.disabled = true; });
  });

  clock(Number(body.dataset.now));
  tick();
  setInterval(tick, 500);
  open();
})();
