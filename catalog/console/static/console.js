// What the page does beside htmx: copy buttons, and the state of its stream.
(() => {
	const root = document.documentElement;
	root.classList.add('js');

	document.addEventListener('click', (event) => {
		const button = event.target.closest('button[data-copy]');
		if (!button) return;
		const source = document.getElementById(button.dataset.copy);
		navigator.clipboard?.writeText(source.textContent).then(() => {
			button.querySelector('span').textContent = 'Copied';
			setTimeout(() => { button.querySelector('span').textContent = 'Copy'; }, 2000);
		});
	});

	// The server sends an event every 15 seconds. Where none arrives, because a proxy holds
	// them back or too many pages are open, the page is loaded again every 30 seconds.
	const quiet = 40000, pace = 30000;
	let heard = Date.now(), polled = 0;
	const live = (on) => root.classList.toggle('live', on);
	const hear = () => { heard = Date.now(); live(true); };
	for (const name of ['htmx:sse:after:connection', 'htmx:sse:after:message']) document.addEventListener(name, hear);
	document.addEventListener('htmx:sse:error', () => live(false));
	document.addEventListener('htmx:sse:close', () => live(false));
	document.addEventListener('reload', () => location.reload());
	document.addEventListener('visibilitychange', () => { heard = Date.now(); });
	setInterval(() => {
		const now = Date.now();
		if (document.hidden || now - heard < quiet || now - polled < pace || !document.getElementById('live')) return;
		polled = now;
		live(false);
		htmx.ajax('GET', location.href, { target: '#main', select: '#main', swap: 'outerMorph' });
	}, 5000);
})();
