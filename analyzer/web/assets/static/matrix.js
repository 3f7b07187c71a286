// A click shows a cell, a drag zooms to a part, + and - change the size of cells. Arrow keys move a frame, and Enter shows its cell.
'use strict';
(() => {
  const main = document.querySelector('main');
  const canvas = () => document.getElementById('cells');
  const region = () => document.querySelector('.matrix');

  const place = (event) => {
    const box = canvas().getBoundingClientRect();
    return { x: event.clientX - box.left, y: event.clientY - box.top };
  };
  const cellAt = (at) => {
    const size = Number(canvas().dataset.cell);
    const index = (v) => Math.floor(size > 0 ? v / size : v * -size);
    return { r: index(at.y), c: index(at.x) };
  };
  // The address names the cell that is shown, so that it can be bookmarked and is refreshed with the page.
  const showCell = async (cell) => {
    const url = new URL(location.href);
    for (const name of ['row', 'column']) url.searchParams.delete(name);
    url.searchParams.set('r', cell.r);
    url.searchParams.set('c', cell.c);
    history.replaceState(null, '', url);
    url.searchParams.set('fragment', 'cell');
    const answer = await fetch(url, { cache: 'no-store', signal: AbortSignal.timeout(15000) });
    if (!answer.ok && answer.status !== 400) throw new Error(answer.status); // 400 says what was wrong
    const next = new DOMParser().parseFromString(await answer.text(), 'text/html');
    const section = document.getElementById('cell');
    section.replaceChildren(...next.body.childNodes);
    document.getElementById('spoken').textContent = section.querySelector('h2')?.textContent ?? '';
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
    if (cursor) return { x: cursor.x / side, y: cursor.y / side };
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
    }
    if (!frame.isConnected) canvas().append(frame); // at first, and when the picture was replaced
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
      showCell(cellAt(to)).catch(() => {}); // the next refresh says that the analyzer does not respond
      return;
    }
    const size = Number(canvas().dataset.cell);
    const side = canvas().width.baseVal.value;
    const shown = Math.min(region().clientWidth - 116, region().clientHeight - 96);
    const times = Math.max(1, Math.floor(shown / width));
    const bigger = size > 0 ? Math.min(64, size * times) : (times >= -size ? Math.min(64, Math.floor(times / -size)) : Math.ceil(size / times));
    zoomTo(bigger === 0 || bigger === -1 ? 1 : bigger, { x: (start.x + to.x) / 2 / side, y: (start.y + to.y) / 2 / side });
  });
  // The cell at which the keyboard is: pixels of the picture, since several cells may share one.
  let cursor = null;
  const step = () => Math.max(1, Number(canvas().dataset.cell));
  const drawCursor = () => {
    if (!cursor || !canvas()) return;
    const side = canvas().width.baseVal.value;
    cursor = { x: Math.max(0, Math.min(cursor.x, side - step())), y: Math.max(0, Math.min(cursor.y, side - step())) };
    const shown = canvas().querySelector('.cursor') ?? canvas().appendChild(document.createElementNS('http://www.w3.org/2000/svg', 'rect'));
    const size = Math.max(step(), 8);
    for (const [name, value] of Object.entries({ class: 'cursor', x: cursor.x - (size - step()) / 2, y: cursor.y - (size - step()) / 2, width: size, height: size })) shown.setAttribute(name, value);
  };
  // A refreshed picture has no frame yet.
  new MutationObserver(() => { if (cursor && canvas() && !canvas().querySelector('.cursor')) drawCursor(); }).observe(main, { childList: true, subtree: true });
  const showCursor = () => {
    const { clientWidth, clientHeight, scrollLeft, scrollTop } = region();
    const inside = (at, scroll, shown) => Math.max(at + step() - shown, Math.min(scroll, at));
    region().scrollTo(inside(cursor.x, scrollLeft, clientWidth - 116), inside(cursor.y, scrollTop, clientHeight - 96));
  };
  const moves = { ArrowLeft: [-1, 0], ArrowRight: [1, 0], ArrowUp: [0, -1], ArrowDown: [0, 1] };
  addEventListener('keydown', (event) => {
    if (event.target !== region() || event.ctrlKey || event.metaKey || event.altKey) return;
    const move = moves[event.key];
    if (move) {
      const snap = (v) => Math.ceil(v / step()) * step();
      cursor = cursor ? { x: cursor.x + move[0] * step(), y: cursor.y + move[1] * step() } : { x: snap(region().scrollLeft), y: snap(region().scrollTop) };
      drawCursor();
      showCursor();
    } else if ((event.key === 'Enter' || event.key === ' ') && cursor) {
      showCell(cellAt({ x: cursor.x + step() / 2, y: cursor.y + step() / 2 })).catch(() => {}); // as with a click
    } else {
      return;
    }
    event.preventDefault();
  });
  // A picture that is wider than the paper is made smaller.
  addEventListener('beforeprint', () => { if (region()) region().style.zoom = Math.min(1, 660 / (region().scrollWidth + 1)); });
  addEventListener('afterprint', () => { if (region()) region().style.zoom = ''; });
  addEventListener('keydown', (event) => {
    if (event.ctrlKey || event.metaKey || event.altKey || event.target.matches?.('input, select')) return;
    const link = document.getElementById(event.key === '+' ? 'zoom-in' : event.key === '-' ? 'zoom-out' : '');
    if (!link) return;
    zoomTo(new URL(link.href).searchParams.get('zoom'), middle());
  });
})();
