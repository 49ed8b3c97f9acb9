(() => {
	const found = { Texts: 0, Faint: [], Sideways: [], Loaded: [], Dark: false };
	const color = (text) => {
		const n = /^rgba?\(([\d.]+), ([\d.]+), ([\d.]+)(?:, ([\d.]+))?\)$/.exec(text);
		if (!n) throw new Error('a color that is not measured: ' + text);
		return { r: +n[1], g: +n[2], b: +n[3], a: n[4] === undefined ? 1 : +n[4] };
	};
	const over = (top, under) => ({
		r: top.r * top.a + under.r * (1 - top.a), g: top.g * top.a + under.g * (1 - top.a), b: top.b * top.a + under.b * (1 - top.a), a: 1,
	});
	// WCAG 2: relative luminance, and the contrast of two.
	const linear = (c) => (c /= 255) <= 0.04045 ? c / 12.92 : ((c + 0.055) / 1.055) ** 2.4;
	const luminance = (c) => 0.2126 * linear(c.r) + 0.7152 * linear(c.g) + 0.0722 * linear(c.b);
	const contrast = (a, b) => {
		const [x, y] = [luminance(a), luminance(b)].sort((p, q) => q - p);
		return (x + 0.05) / (y + 0.05);
	};
	const canvas = { r: 255, g: 255, b: 255, a: 1 };
	// The background behind an element: those of the elements around it, one over
	// the other. In a drawing it is the rectangle beside a text, or the paper.
	const behind = (element) => {
		if (element instanceof SVGElement) {
			const rect = element.parentElement.querySelector(':scope > rect') || document.querySelector('rect.paper');
			return color(getComputedStyle(rect).fill);
		}
		const layers = [];
		for (let e = element; e; e = e.parentElement) {
			const style = getComputedStyle(e);
			if (style.opacity !== '1') throw new Error('opacity is not measured');
			layers.push(color(style.backgroundColor));
			if (layers.at(-1).a === 1) break;
		}
		return layers.reverse().reduce((under, top) => over(top, under), canvas);
	};
	const walker = document.createTreeWalker(document.documentElement, NodeFilter.SHOW_TEXT);
	const seen = new Set();
	for (let node = walker.nextNode(); node; node = walker.nextNode()) {
		const element = node.parentElement;
		if (!node.data.trim() || /^(style|title|desc|script)$/i.test(element.tagName)) continue;
		if (!element.checkVisibility({ visibilityProperty: true, contentVisibilityAuto: true })) continue;
		found.Texts++;
		const style = getComputedStyle(element);
		const front = color(element instanceof SVGElement ? style.fill : style.color), back = behind(element);
		const size = parseFloat(style.fontSize), large = size >= 24 || size >= 18.66 && +style.fontWeight >= 700;
		const ratio = contrast(over(front, back), back);
		const what = element.tagName + '.' + element.getAttribute('class') + ' ' + ratio.toFixed(2);
		if (ratio < (large ? 3 : 4.5) && !seen.has(what)) {
			seen.add(what);
			found.Faint.push(what + ' "' + node.data.trim().slice(0, 40) + '"');
		}
	}
	const root = document.documentElement;
	if (root.scrollWidth > root.clientWidth) {
		for (const e of document.querySelectorAll('body *')) {
			const right = e.getBoundingClientRect().right;
			if (right > root.clientWidth + 0.5 && found.Sideways.length < 5) found.Sideways.push(e.tagName + '.' + e.getAttribute('class') + ' to ' + right);
		}
		if (!found.Sideways.length) found.Sideways.push('the page: ' + root.scrollWidth);
	}
	// A page of a server may have files beside it, a page of its own nothing.
	const own = location.protocol === 'file:' ? null : location.origin + '/';
	found.Loaded = performance.getEntriesByType('resource').map((e) => e.name).filter((name) => !own || !name.startsWith(own));
	const paper = document.querySelector('rect.paper');
	found.Dark = luminance(paper ? color(getComputedStyle(paper).fill) : behind(document.body)) < 0.2;
	return JSON.stringify(found);
})()
