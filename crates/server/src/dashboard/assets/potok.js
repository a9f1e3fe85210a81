// Pages are complete without this. It swaps the parts that changed, counts down, and knows some keys.
(() => {
  const doc = document, body = doc.body, live = doc.getElementById("live"), said = doc.getElementById("said");
  let source, heard = Date.now(), ahead = 0, word = live && live.textContent, problems = null;

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
    if (live && source && Date.now() - heard > 5000) {
      live.classList.add("off");
      live.lastChild.textContent = "no word for " + span(Date.now() - heard);
    }
  };
  const clock = (now) => { ahead = now - Date.now(); };
  // What somebody types into, selects or points at stays as it is.
  const busy = (el) => {
    const at = doc.activeElement, pick = getSelection();
    return (at && at !== body && el.contains(at) && at.matches("input,textarea,select"))
      || (pick && !pick.isCollapsed && el.contains(pick.anchorNode))
      || (el.dataset.calm !== undefined && el.matches(":hover"));
  };
  const take = (event) => {
    const news = JSON.parse(event.data);
    heard = Date.now();
    clock(news.now);
    if (live) { live.classList.remove("off"); live.lastChild.textContent = "live · " + news.time; }
    for (const [id, html] of Object.entries(news.parts)) {
      const el = doc.getElementById(id);
      if (!el || busy(el)) continue;
      const at = doc.activeElement, inside = at && el.contains(at) ? [...el.querySelectorAll("a,button")].indexOf(at) : -1;
      el.innerHTML = html;
      if (inside >= 0) { const again = el.querySelectorAll("a,button")[inside]; if (again) again.focus(); }
    }
    if (said && news.problems !== undefined) {
      if (problems !== null && news.problems > problems) said.textContent = news.problems + " things need a look";
      problems = news.problems;
    }
    tick();
  };
  const open = () => {
    if (source || doc.hidden || !body.dataset.view) return;
    source = new EventSource("/events?view=" + encodeURIComponent(body.dataset.view));
    source.onmessage = take;
    source.onerror = () => {
      if (source.readyState !== 2) return;
      source = null;
      setTimeout(() => { if (!doc.hidden && !doc.activeElement.matches("input,textarea,select")) location.reload(); }, 15000);
    };
  };
  doc.addEventListener("visibilitychange", () => {
    if (doc.hidden && source) { source.close(); source = null; } else { heard = Date.now(); open(); }
  });
  addEventListener("pagehide", () => { if (source) { source.close(); source = null; } });

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
