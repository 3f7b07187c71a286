// The matrix is fetched again every five seconds. A click shows a cell, a drag zooms to a part, + and - change the size of cells.
'use strict';
(() => {
  const every = 5000;
  const offline = document.getElementById('offline');
  const spoken = document.getElementById('spoken');
  const main = document.querySelector('main');
  const canvas = () => document.getElementById('cells');
  const region = () => document.querySelector('.matrix');
  let chosen = null; // the cell that is shown

  const load = async (change) => {
    const url = new URL(location.href);
    url.hash = '';
    change(url.searchParams);
    const answer = await fetch(url, { cache: 'no-store', signal: AbortSignal.timeout(15000) });
    if (!answer.ok && answer.status !== 400) throw new Error(answer.status);
    return new DOMParser().parseFromString(await answer.text(), 'text/html');
  };
  // Pictures of the new state are shown once they are loaded, so that nothing flickers.
  const swapPicture = async (next) => {
    const now = canvas();
    const then = next.querySelector('#cells');
    if (!now || !then || now.outerHTML === then.outerHTML) return;
    await Promise.allSettled([...then.querySelectorAll('image')].map((image) => {
      const picture = new Image();
      picture.src = image.getAttribute('href');
      return picture.decode();
    }));
    for (const name of ['.top', '.left', '#cells']) document.querySelector('.matrix ' + name).replaceWith(document.adoptNode(next.querySelector('.matrix ' + name)));
  };
  const refresh = async () => {
    try {
      const next = await load((q) => {
        q.set('fragment', 'main');
        if (chosen) { q.set('r', chosen.r); q.set('c', chosen.c); }
      });
      await swapPicture(next);
      for (const piece of next.querySelectorAll('[data-live]')) {
        const old = document.getElementById(piece.id);
        if (piece.id === 'picture' || !old || old.outerHTML === piece.outerHTML || old.contains(document.activeElement)) continue;
        old.replaceWith(document.adoptNode(piece));
      }
      const { title } = document.getElementById('answer').dataset;
      if (document.title !== title) document.title = spoken.textContent = title;
      offline.hidden = true;
      document.body.classList.remove('offline');
    } catch {
      offline.hidden = false;
      document.body.classList.add('offline');
    }
    setTimeout(refresh, every);
  };
  setTimeout(refresh, every);

  const place = (event) => {
    const box = canvas().getBoundingClientRect();
    return { x: event.clientX - box.left, y: event.clientY - box.top };
  };
  const cellAt = (at) => {
    const size = Number(canvas().dataset.cell);
    const index = (v) => Math.floor(size > 0 ? v / size : v * -size);
    return { r: index(at.y), c: index(at.x) };
  };
  const showCell = async (cell) => {
    chosen = cell;
    const next = await load((q) => { q.set('fragment', 'cell'); q.set('r', cell.r); q.set('c', cell.c); q.delete('row'); q.delete('column'); });
    const section = document.getElementById('cell');
    section.replaceChildren(...next.body.childNodes);
    spoken.textContent = section.querySelector('h2')?.textContent ?? '';
  };
  // zoomTo changes the size of cells, and keeps a place of the matrix, given as shares of its side, in the middle of what is shown.
  const zoomTo = (size, middle) => {
    const url = new URL(location.href);
    url.searchParams.set('zoom', size);
    url.hash = `at=${middle.x.toFixed(4)},${middle.y.toFixed(4)}`;
    location.assign(url);
  };
  const middle = () => {
    const box = region();
    const side = canvas().width.baseVal.value;
    const share = (scroll, shown) => Math.min(1, (scroll + shown / 2) / side);
    return { x: share(box.scrollLeft, box.clientWidth - 116), y: share(box.scrollTop, box.clientHeight - 96) };
  };
  const scrollTo = () => {
    const at = /^#at=([\d.]+),([\d.]+)$/.exec(location.hash);
    if (!at || !region()) return;
    const side = canvas().width.baseVal.value;
    region().scrollTo(Number(at[1]) * side - (region().clientWidth - 116) / 2, Number(at[2]) * side - (region().clientHeight - 96) / 2);
  };
  scrollTo();

  let from = null;
  let frame = null;
  main.addEventListener('pointerdown', (event) => {
    if (event.button !== 0 || !canvas()?.contains(event.target)) return;
    from = place(event);
    event.preventDefault();
  });
  addEventListener('pointermove', (event) => {
    if (!from || !canvas()) return;
    const to = place(event);
    if (!frame) {
      frame = document.createElementNS('http://www.w3.org/2000/svg', 'rect');
      frame.setAttribute('class', 'frame');
      canvas().append(frame);
    }
    frame.setAttribute('x', Math.min(from.x, to.x));
    frame.setAttribute('y', Math.min(from.y, to.y));
    frame.setAttribute('width', Math.abs(to.x - from.x));
    frame.setAttribute('height', Math.abs(to.y - from.y));
  });
  addEventListener('pointerup', (event) => {
    if (!from) return;
    const start = from;
    const to = place(event);
    from = null;
    frame?.remove();
    frame = null;
    const width = Math.max(Math.abs(to.x - start.x), Math.abs(to.y - start.y));
    if (width < 6) {
      showCell(cellAt(to)).catch(() => { offline.hidden = false; });
      return;
    }
    const size = Number(canvas().dataset.cell);
    const side = canvas().width.baseVal.value;
    const shown = Math.min(region().clientWidth - 116, region().clientHeight - 96);
    const times = Math.max(1, Math.floor(shown / width));
    const bigger = size > 0 ? Math.min(64, size * times) : (times >= -size ? Math.min(64, Math.floor(times / -size)) : Math.ceil(size / times));
    zoomTo(bigger === 0 || bigger === -1 ? 1 : bigger, { x: (start.x + to.x) / 2 / side, y: (start.y + to.y) / 2 / side });
  });
  addEventListener('keydown', (event) => {
    if (event.ctrlKey || event.metaKey || event.altKey || event.target.matches?.('input, select')) return;
    const link = document.getElementById(event.key === '+' ? 'zoom-in' : event.key === '-' ? 'zoom-out' : '');
    if (!link) return;
    zoomTo(new URL(link.href).searchParams.get('zoom'), middle());
  });
})();
