// Every two seconds, or as often as the page says, the main part is fetched again and
// each piece that changed is replaced. What the reader has focused or typed stays.
'use strict';
(() => {
  const every = Number(document.body.dataset.every ?? 2000);
  const offline = document.getElementById('offline');
  const spoken = document.getElementById('spoken');
  const scrolling = '.canvas, .scroll, .matrix';
  // Pictures are loaded before they are shown, so that nothing flickers.
  const loadPictures = (piece) => Promise.allSettled([...piece.querySelectorAll('image')].map((image) => {
    const picture = new Image();
    picture.src = image.getAttribute('href');
    return picture.decode();
  }));
  const take = async (piece) => {
    const old = document.getElementById(piece.id);
    for (const open of old ? old.querySelectorAll('details[open]') : []) {
      piece.querySelector('#' + CSS.escape(open.id))?.setAttribute('open', '');
    }
    if (!old || old.outerHTML === piece.outerHTML) return;
    await loadPictures(piece);
    const active = old.contains(document.activeElement) ? document.activeElement : null;
    const focused = active?.getAttribute('href') ?? null;
    const region = old.querySelector(scrolling);
    const { scrollLeft = 0, scrollTop = 0 } = region ?? {};
    old.replaceWith(piece);
    piece.querySelector(scrolling)?.scrollTo(scrollLeft, scrollTop);
    if (active && active === region) piece.querySelector(scrolling)?.focus({ preventScroll: true });
    if (focused === null) return;
    for (const a of piece.querySelectorAll('a')) {
      if (a.getAttribute('href') === focused) {
        a.focus({ preventScroll: true });
        return;
      }
    }
  };
  const refresh = async () => {
    try {
      const url = new URL(location.href);
      url.searchParams.set('fragment', 'main');
      const answer = await fetch(url, { cache: 'no-store', signal: AbortSignal.timeout(10000) });
      // 400 is an answer too: it says what was wrong with the look-up.
      if (!answer.ok && answer.status !== 400) throw new Error(answer.status);
      const next = new DOMParser().parseFromString(await answer.text(), 'text/html');
      for (const piece of next.querySelectorAll('[data-live]')) await take(document.adoptNode(piece));
      const { title } = document.getElementById('answer').dataset;
      if (document.title !== title) {
        document.title = title;
        spoken.textContent = title; // for those who listen to the page
      }
      offline.hidden = true;
      document.body.classList.remove('offline');
    } catch {
      offline.hidden = false;
      document.body.classList.add('offline');
    }
    setTimeout(refresh, every);
  };
  setTimeout(refresh, every);
})();
