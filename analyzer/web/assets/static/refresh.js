// When the analyzer announces a change, the main part is fetched again and each piece that changed is replaced. What the reader has
// focused, opened, scrolled or typed stays. Where no announcements arrive, it is fetched every two seconds, or as often as the page
// says, which is also how often it is fetched at most. A page that is hidden fetches nothing.
'use strict';
(() => {
  const every = Number(document.body.dataset.every ?? 2000);
  const patience = 10000; // so long after an announcement, the page asks by itself
  const again = 60000; // so long after announcements were refused, it asks for them again
  const events = new URL('../events', document.currentScript.src);
  const offline = document.getElementById('offline');
  const spoken = document.getElementById('spoken');
  const scrolling = '.canvas, .scroll, .matrix';
  const focusable = 'a, button, input, select, summary, [tabindex]';
  // Pictures are loaded before they are shown, so that nothing flickers.
  const loadPictures = (piece) => Promise.allSettled([...piece.querySelectorAll('image')].map((image) => {
    const picture = new Image();
    picture.src = image.getAttribute('href');
    return picture.decode();
  }));
  // alike returns what stands in a piece for an element, at whose place it was among others of the same name.
  const alike = (piece, element) => {
    const name = (e) => [e.localName, e.id || e.getAttribute('href') || e.getAttribute('aria-labelledby') || e.getAttribute('aria-label') || e.textContent].join(' ');
    return [...piece.querySelectorAll(focusable)].filter((e) => name(e) === name(element));
  };
  const take = async (piece) => {
    const old = document.getElementById(piece.id);
    for (const open of old ? old.querySelectorAll('details[open][id]') : []) {
      piece.querySelector('#' + CSS.escape(open.id))?.setAttribute('open', '');
    }
    if (!old || old.outerHTML === piece.outerHTML) return;
    await loadPictures(piece);
    const active = old.contains(document.activeElement) ? document.activeElement : null;
    const place = active ? alike(old, active).indexOf(active) : 0;
    const scrolled = [...old.querySelectorAll(scrolling)].map(({ scrollLeft, scrollTop }) => [scrollLeft, scrollTop]);
    old.replaceWith(piece);
    piece.querySelectorAll(scrolling).forEach((region, i) => region.scrollTo(...(scrolled[i] ?? [0, 0])));
    if (active && place >= 0) alike(piece, active)[place]?.focus({ preventScroll: true });
  };
  let tag = ''; // of what is shown
  const fetchMain = async () => {
    const url = new URL(location.href);
    url.searchParams.set('fragment', 'main');
    const answer = await fetch(url, { cache: 'no-store', headers: tag ? { 'If-None-Match': tag } : {}, signal: AbortSignal.timeout(10000) });
    if (answer.status === 304) return;
    // 400 is an answer too: it says what was wrong with the look-up.
    if (!answer.ok && answer.status !== 400) throw new Error(answer.status);
    const next = new DOMParser().parseFromString(await answer.text(), 'text/html');
    for (const piece of next.querySelectorAll('[data-live]')) await take(document.adoptNode(piece));
    tag = answer.headers.get('ETag') ?? '';
    const { title } = document.getElementById('answer').dataset;
    if (document.title !== title) {
      document.title = title;
      spoken.textContent = title; // for those who listen to the page
    }
  };
  let timer = 0;
  let busy = false;
  let announced = false; // a change that was not fetched yet
  let heard = -Infinity; // when a change was announced last
  let fetched = performance.now();
  // plan sets the time of the next fetch.
  const plan = () => {
    clearTimeout(timer);
    if (busy || document.hidden) return;
    const next = Math.max(fetched + every, announced ? 0 : heard + patience);
    timer = setTimeout(refresh, Math.max(0, next - performance.now()));
  };
  const refresh = async () => {
    busy = true;
    announced = false;
    fetched = performance.now();
    try {
      await fetchMain();
      offline.hidden = true;
    } catch {
      tag = '';
      offline.hidden = false;
    }
    document.body.classList.toggle('offline', !offline.hidden);
    busy = false;
    plan();
  };
  let source = null;
  const listen = () => {
    if (source || document.hidden) return;
    source = new EventSource(events);
    source.onmessage = () => {
      heard = performance.now();
      announced = true;
      plan();
    };
    source.onerror = () => {
      heard = -Infinity;
      if (source?.readyState === EventSource.CLOSED) {
        source = null;
        setTimeout(listen, again);
      }
      plan();
    };
  };
  // A browser has few connections to a server, so that hidden pages hold none.
  const silence = () => {
    source?.close();
    source = null;
    heard = -Infinity;
  };
  document.addEventListener('visibilitychange', () => {
    if (document.hidden) silence();
    else listen();
    announced = true;
    plan();
  });
  addEventListener('pagehide', silence);
  addEventListener('pageshow', (event) => { if (event.persisted) listen(); });
  listen();
  plan();
})();
