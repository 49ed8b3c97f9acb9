# The catalog: which agents and tools run.

.PHONY: test-catalog
test-catalog: controlplane ## Test the catalog against real servers
	$(GO) test ./catalog/... ./e2e/catalog/...

.PHONY: demo-console
demo-console: build controlplane ## Open a page with agents, tool servers, builds and a package, some of which have something wrong
	@$(GO) run ./e2e/catalog/demo -bin bin $(if $(STAY),-stay=$(STAY))

# htmx, Open Props and Inter are embedded, so that a page loads nothing from elsewhere.
VENDOR := catalog/console/static/vendor
.PHONY: vendor-console
vendor-console: ## Copy what the console embeds from npm, in the versions that its package.json pins
	dir=$$(mktemp -d) && cp $(VENDOR)/package.json $$dir && (cd $$dir && npm install --ignore-scripts --no-audit --no-fund --silent) && m=$$dir/node_modules && \
		cp $$m/htmx.org/dist/htmx.min.js $$m/htmx.org/dist/ext/hx-sse.min.js $(VENDOR) && cp $$m/htmx.org/LICENSE $(VENDOR)/LICENSE-htmx.txt && \
		cp $$m/open-props/fonts.min.css $$m/open-props/sizes.min.css $(VENDOR) && cp $$m/open-props/LICENSE $(VENDOR)/LICENSE-open-props.txt && \
		cp $$m/@fontsource-variable/inter/files/inter-latin-wght-normal.woff2 $(VENDOR)/inter.woff2 && cp $$m/@fontsource-variable/inter/LICENSE $(VENDOR)/LICENSE-inter.txt && rm -r $$dir

.PHONY: bench-catalog
bench-catalog: controlplane ## Print what 1,000 agents and 200 tool servers cost, and pages among 10,000
	$(GO) test -run '^$$' -bench Catalog -benchtime 1x -timeout 30m ./e2e/catalog
	$(GO) test -run '^$$' -bench Console -benchtime 1x -timeout 30m ./catalog/console

.PHONY: generate-catalog
generate-catalog: ## Write the CRDs of the catalog's kinds
	$(GO) generate ./catalog/...

# make bench prints what the catalog costs as well.
bench: bench-catalog
