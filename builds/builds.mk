# The build side: AgentBuild, its composer and its controller.

.PHONY: test-builds
test-builds: controlplane ## Test AgentBuilds against a real API server
	go test ./builds/... ./cmd/armature-controller/... ./cmd/armature/...

.PHONY: bench-builds
bench-builds: controlplane ## Print what the build controller costs and, where a cluster can run, how long builds take on one
	go test -run '^$$' -bench Builds -benchtime 1x -timeout 30m ./builds/controller
	@if why=$$(e2e/can.sh); then \
		e2e/run.sh -bench Builds -benchtime 1x && make --no-print-directory cluster-down; \
	else \
		echo "builds on a cluster were not measured: $$why"; \
	fi

.PHONY: generate-builds
generate-builds: ## Write the CRD of AgentBuild, and the goldens
	go generate ./builds/...
	go test ./builds/compose -run 'Golden|Broken' -update
	go test ./builds/client -run 'Golden|Docs' -update

.PHONY: fuzz-builds
fuzz-builds: ## Fuzz the readers of builds, templates and steps for a minute each
	go test -run '^$$' -fuzz FuzzBuilds -fuzztime 1m ./builds/compose/manifest
	go test -run '^$$' -fuzz FuzzTemplateAndStep -fuzztime 1m ./builds/compose

.PHONY: demo-build-plan
demo-build-plan: build ## Show the pipeline that an AgentBuild becomes, without a cluster
	bin/armature build plan examples/builds/weather.yaml --graph
	bin/armature build plan examples/builds/weather.yaml

# make bench prints what builds cost as well.
bench: bench-builds
