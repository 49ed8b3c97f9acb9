package metrics

var (
	runSeconds = []float64{0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 120, 300, 600, 1200, 1800,
		3600, 7200}
	requestSeconds  = []float64{0.1, 0.5, 1, 2.5, 5, 10, 20, 60, 180}
	discoverSeconds = []float64{0.005, 0.025, 0.1, 0.5, 1, 5, 10, 30, 60}
)

// list has all metrics. Dashboards of users depend on their names.
var list = []Metric{
	{Name: "armature_builds", Group: "builds", Type: "gauge", Labels: "namespace phase",
		Help: "AgentBuilds by phase."},
	{Name: "armature_builds_unready", Group: "builds", Type: "gauge", Labels: "namespace reason",
		Help: "AgentBuilds that are not Ready, by reason. One whose run failed counts for " +
			"half an hour.",
		Alerts: []Alert{{
			Name: "ArmatureAttestKeyMissing", Severity: "critical", For: "1m",
			Expr:    unready(`AttestKeyMissing|AttestIdentityMissing`),
			Summary: "{{ $value }} builds in {{ $labels.namespace }} wait for the key that attests",
			Remedy: "Restore the Secret that `--attest-key` names (`armature-attest-key`), or " +
				"the token and trusted root of keyless signing. The builds continue by themselves.",
		}, {
			Name: "ArmatureRegistryUnreachable", Severity: "warning", For: "1m",
			Expr: unready(`RegistryUnreachable`),
			Summary: "{{ $value }} builds in {{ $labels.namespace }} failed because a registry " +
				"did not answer",
			Remedy: "`armature build describe` names the registry. Restore it, its DNS or the " +
				"NetworkPolicy before it; then `armature build rerun` what has no retries left.",
		}, {
			Name: "ArmatureRunsDenied", Severity: "warning", For: "5m",
			Expr: unready(`PipelineRunDenied`),
			Summary: "The API server refuses the runs of {{ $value }} builds in {{ " +
				"$labels.namespace }}",
			Remedy: "`armature build describe` has its words: a quota, an admission policy, a " +
				"missing right, or Tekton's CRDs. After the change, builds continue by themselves.",
		}, {
			Name: "ArmatureBuildsRetry", Severity: "warning", For: "15m",
			Expr: unready(`Retrying`),
			Summary: "{{ $value }} builds in {{ $labels.namespace }} wait for a server that " +
				"does not answer",
			Remedy: "`armature build describe` names the server and its error. Restore it; the " +
				"builds continue by themselves.",
		}}},
	{Name: "armature_builds_queued", Group: "builds", Type: "gauge", Labels: "namespace",
		Help: "AgentBuilds that wait for a place, of namespaces where any does."},
	{Name: "armature_builds_oldest_wait_seconds", Group: "builds", Type: "gauge",
		Labels: "namespace waits_for",
		Help: "How long the AgentBuild that waits longest does: for a slot of the queue, or for " +
			"Tekton to start its run.",
		Alerts: []Alert{{
			Name: "ArmatureQueueFull", Severity: "warning", For: "5m",
			Expr: `max by (namespace) (armature_builds_oldest_wait_seconds{waits_for="slot"}) > 1800`,
			Summary: "A build in {{ $labels.namespace }} has waited for a slot for {{ $value | " +
				"humanizeDuration }}",
			Remedy: "`armature build list -A` shows the runs that have the slots. Cancel those " +
				"that hang, or raise `maxRunning`, `maxRunningPerNamespace`, " +
				"`maxIsolatedPerNamespace` or the quota of Kueue.",
		}, {
			Name: "ArmatureTektonIdle", Severity: "critical", For: "2m",
			Expr: `max by (namespace) (armature_builds_oldest_wait_seconds{waits_for="start"}) > 180`,
			Summary: "Tekton has not started a run in {{ $labels.namespace }} for {{ $value | " +
				"humanizeDuration }}",
			Remedy: "Look at `kubectl -n tekton-pipelines get pods` and the log of " +
				"`tekton-pipelines-controller`. When it works again, it starts the runs that wait.",
		}}},
	{Name: "armature_build_runs_total", Group: "builds", Type: "counter",
		Labels: "namespace mode trigger", Help: "PipelineRuns that were created, by why."},
	{Name: "armature_build_results_total", Group: "builds", Type: "counter",
		Labels: "namespace mode result reason", Help: "Runs that ended, by result and reason.",
		Alerts: []Alert{{
			Name: "ArmatureBuildsFail", Severity: "warning",
			Expr: `(` + failures("1h]") + ` > 3 and ` + failed("1h]") + ` > 0.33) unless ` +
				failed("1h]") +
				` <= 2 * ` + failed("1d] offset 1h"),
			Summary: "{{ $value | humanize }} builds failed within an hour, more than a third " +
				"and twice as many as on the day before, without those that their authors " +
				"have to fix",
			Remedy: "The dashboard shows the reasons. `armature build describe` of one says " +
				"where it failed; what many have in common is the cause: a node, a registry, a " +
				"base image, a template.",
		}}},
	{Name: "armature_build_denials_total", Group: "builds", Type: "counter",
		Labels: "namespace mode", Help: "Runs that the API server refused."},
	{Name: "armature_build_establish_duration_seconds", Group: "builds", Type: "histogram",
		Labels: "namespace mode", Buckets: runSeconds,
		Help: "From the creation of an AgentBuild to its first PipelineRun."},
	{Name: "armature_build_rampup_duration_seconds", Group: "builds", Type: "histogram",
		Labels: "namespace mode", Buckets: runSeconds,
		Help: "From the creation of a PipelineRun to its start."},
	{Name: "armature_build_completion_duration_seconds", Group: "builds", Type: "histogram",
		Labels: "namespace mode", Buckets: runSeconds,
		Help: "From the creation of a PipelineRun to its end."},
	{Name: "armature_server_request_duration_seconds", Group: "builds", Type: "histogram",
		Labels: "request result", Buckets: requestSeconds,
		Help: "How long servers took: a Git server for a commit or a poll, a registry to " +
			"attest. A refused request has an answer that a user must act on.",
		Alerts: []Alert{{
			Name: "ArmatureGitSlow", Severity: "warning", For: "10m",
			Expr: `histogram_quantile(0.9, sum by (le) ` +
				`(rate(armature_server_request_duration_seconds_bucket{request=~"commit|poll"}[15m]))) > 10`,
			Summary: "One request in ten to Git servers takes longer than {{ $value | " +
				"humanizeDuration }}",
			Remedy: "A request ends after 20 s, and 12 are made at once, 3 for one namespace. " +
				"The controller's log names the repositories; relieve their server, or let " +
				"webhooks replace short `poll` intervals.",
		}, {
			Name: "ArmatureAttestationsFail", Severity: "critical", For: "5m",
			Expr:    requests("attest") + ` > 0.5`,
			Summary: "{{ $value | humanizePercentage }} of the attempts to attest fail",
			Remedy: "`armature build describe` of a build with reason `Retrying` names the " +
				"cause: the registry, its login, the key, the KMS, Fulcio. Restore it; images " +
				"are attested without another run.",
		}}},
	{Name: "armature_polled_repositories", Group: "builds", Type: "gauge", Labels: "result",
		Help: "Repositories that builds follow, by result of the last poll, which the " +
			"leader counts.",
		Alerts: []Alert{{
			Name: "ArmatureGitUnreachable", Severity: "warning", For: "5m",
			Expr: `sum(armature_polled_repositories{result="failed"}) / sum(armature_polled_repositories) > 0.2 or ` +
				requests("commit") + ` > 0.5 or sum(` + unready("GitRemoteUnreachable") + `)`,
			Summary: "Git servers do not answer",
			Remedy: "The controller's log and `armature build describe` name the repositories. " +
				"Restore the server, its DNS, its certificate or the NetworkPolicy " +
				"before it; polls continue within an hour, or at once after `armature build rerun`.",
		}}},
	{Name: "armature_webhook_deliveries_total", Group: "builds", Type: "counter", Labels: "verdict",
		Help: "Deliveries of webhooks, by verdict: accepted, ignored (not about a branch, a " +
			"tag or a pull request), refused (wrong signature or path), too_large, busy.",
		Alerts: []Alert{{
			Name: "ArmatureWebhooksRefused", Severity: "warning",
			Expr: `sum(increase(armature_webhook_deliveries_total{verdict=~"refused|too_large|busy"}[30m])) > ` +
				`10 + sum(increase(armature_webhook_deliveries_total{verdict=~"accepted|ignored"}[30m]))`,
			Summary: "{{ $value | humanize }} webhooks were refused within half an hour, more " +
				"than were accepted",
			Remedy: "Compare the URL and the secret at the forge with the Secret of " +
				"`spec.trigger.webhook`. Where strangers call, limit who reaches the Service " +
				"`armature-webhooks`. Polls find what was missed.",
		}}},
	{Name: "armature_tekton_installed", Group: "builds", Type: "gauge",
		Help: "1 if Tekton's CRDs are installed, 0 while the controller waits for them.",
		Alerts: []Alert{{
			Name: "ArmatureTektonMissing", Severity: "critical", For: "2m",
			Expr:    `min(armature_tekton_installed) == 0`,
			Summary: "Tekton's CRDs are not installed, and nothing is built",
			Remedy: "Install Tekton Pipelines. The controller finds it within seconds " +
				"and continues.",
		}}},
	{Name: "armature_rendered_source_attempts_total", Group: "sources", Type: "counter",
		Labels: "name namespace reason",
		Help:   "Reconciliations of RenderedSources, by the reason of their condition Ready."},
	{Name: "armature_rendered_source_ready", Group: "sources", Type: "gauge",
		Labels: "name namespace", Help: "1 if the RenderedSource is Ready, 0 if it is not.",
		Alerts: []Alert{{
			Name: "ArmatureSourceNotReady", Severity: "warning", For: "10m",
			Expr:    `max by (namespace, name) (armature_rendered_source_ready) == 0`,
			Summary: "RenderedSource {{ $labels.namespace }}/{{ $labels.name }} is not Ready",
			Remedy: "`kubectl -n NAMESPACE describe renderedsource NAME` has the reason. The " +
				"last archive stays published. After the fix, `flux reconcile` of its source or " +
				"a new revision starts it at once.",
		}}},
	{Name: "armature_rendered_source_archive_bytes", Group: "sources", Type: "gauge",
		Labels: "name namespace", Help: "Size of the published archive."},
	{Name: "gotk_reconcile_duration_seconds", Group: "sources", Type: "histogram",
		Labels: "kind name namespace", Foreign: "Flux",
		Help: "How long reconciliations of RenderedSources take."},
	{Name: "armature_catalog_entries", Group: "catalog", Type: "gauge", Labels: "resource health",
		Help: "Entries of the catalog by health."},
	{Name: "armature_catalog_items", Group: "catalog", Type: "gauge",
		Help: "Skills, tools, resources and prompts of all entries."},
	{Name: "armature_catalog_store_up", Group: "catalog", Type: "gauge",
		Help: "1 if the store answers, 0 if it does not.",
		Alerts: []Alert{{
			Name: "ArmatureCatalogStoreDown", Severity: "critical", For: "2m",
			Expr:    `min by (namespace, pod) (armature_catalog_store_up) == 0`,
			Summary: "The store of the catalog does not answer {{ $labels.pod }}",
			Remedy: "Restore PostgreSQL, or correct the address in the Secret of " +
				"`catalog.storeSecret`. A database that is lost may be empty: the catalog fills " +
				"it again from the cluster.",
		}}},
	{Name: "armature_catalog_following", Group: "catalog", Type: "gauge", Labels: "resource",
		Help: "1 if a kind is watched, 0 if watching it fails; kinds without a CRD are absent.",
		Alerts: []Alert{{
			Name: "ArmatureCatalogNotFollowing", Severity: "warning", For: "10m",
			Expr:    `min by (resource) (armature_catalog_following) == 0`,
			Summary: "The catalog cannot watch {{ $labels.resource }}, and its entries are stale",
			Remedy: "The catalog's log has the error, most often a missing right: `armature " +
				"install --catalog` restores the roles. It is tried again within 30 s.",
		}}},
	{Name: "armature_catalog_discoveries_total", Group: "catalog", Type: "counter",
		Labels: "resource result", Help: "Queries of agents and servers, by result.",
		Alerts: []Alert{{
			Name: "ArmatureCatalogDiscoveryFails", Severity: "warning", For: "30m",
			Expr: `sum by (resource) (rate(armature_catalog_discoveries_total{result="failed"}[30m])) / ` +
				`sum by (resource) (rate(armature_catalog_discoveries_total[30m])) > 0.5`,
			Summary: "{{ $value | humanizePercentage }} of the {{ $labels.resource }} that the " +
				"catalog asks do not answer",
			Remedy: "`armature catalog list -A` shows the errors. Many at once mean the network: " +
				"NetworkPolicies between the catalog and the agents, or DNS.",
		}}},
	{Name: "armature_catalog_discovery_duration_seconds", Group: "catalog", Type: "histogram",
		Labels: "resource", Buckets: discoverSeconds,
		Help: "How long an agent or a server took to answer."},
	{Name: "armature_catalog_status_writes_total", Group: "catalog", Type: "counter",
		Labels: "resource", Help: "Status writes to the API server."},
	{Name: "up", Group: "controllers", Type: "gauge", Labels: "job", Foreign: "Prometheus",
		Help: "1 if the controller was scraped.",
		Alerts: []Alert{{
			Name: "ArmatureDown", Severity: "critical", For: "5m",
			Expr: `sum by (job, service) (up{` + jobs +
				`}) == 0 or absent(up{job="armature-controller"}) or ` +
				`(group by (job, service) (up{` + jobs +
				`} offset 1h) unless group by (job, service) (up{` + jobs + `}))`,
			Summary: "{{ $labels.job }} does not run, or cannot be scraped",
			Remedy: "`kubectl -n armature-system describe deployment,pod` says why there is no " +
				"pod; `kubectl logs --previous` why it ended. Runs under way continue without " +
				"the controller.",
		}}},
	{Name: "leader_election_master_status", Group: "controllers", Type: "gauge", Labels: "name",
		Foreign: "client-go", Help: "1 if the replica leads.",
		Alerts: []Alert{{
			Name: "ArmatureNoLeader", Severity: "critical", For: "2m",
			Expr:    `sum by (job, name) (leader_election_master_status{` + jobs + `}) == 0`,
			Summary: "No replica of {{ $labels.job }} leads, and nothing is reconciled",
			Remedy: "The log has the error: the API server does not answer, or the Role for " +
				"the Lease {{ $labels.name }} is missing. `armature install` restores it. A " +
				"Lease of a holder that is gone expires by itself.",
		}}},
	{Name: "controller_runtime_reconcile_errors_total", Group: "controllers", Type: "counter",
		Labels: "controller", Foreign: "controller-runtime",
		Help: "Reconciliations that failed: the API server refused a read, or a write of a status.",
		Alerts: []Alert{{
			Name: "ArmatureReconcileErrors", Severity: "warning", For: "30m",
			Expr: `sum by (job, controller) (increase(controller_runtime_reconcile_errors_total{` +
				jobs + `}[20m])) / ` +
				`sum by (job, controller) (increase(controller_runtime_reconcile_total{` + jobs +
				`}[20m])) > 0.5`,
			Summary: "{{ $value | humanizePercentage }} of the reconciliations of {{ " +
				"$labels.controller }} fail, such as writes of a status",
			Remedy: "The log of {{ $labels.job }} has the errors. `forbidden` and `not found`: " +
				"run `armature install` of this release again, which has the roles and CRDs. " +
				"Others: look at the API server and its webhooks.",
		}}},
}

// jobs selects the jobs of the ServiceMonitor, which have the names of the Deployments.
const jobs = `job=~"armature-(controller|catalog|sources)"`

// unready counts the builds with one of the reasons by namespace. All replicas report all builds.
func unready(reasons string) string {
	return `sum by (namespace) (max by (namespace, reason) (armature_builds_unready{reason=~"` +
		reasons + `"})) > 0`
}

// requests returns the share of requests of a kind that failed.
func requests(kind string) string {
	of := `armature_server_request_duration_seconds_count{request="` + kind + `"`
	return `sum(rate(` + of + `,result="failed"}[15m])) / sum(rate(` + of + `}[15m]))`
}

// AuthorsReasons is a placeholder for the reasons of builds/failure that the author of a build has
// to fix. The test that writes the alerts replaces it.
const AuthorsReasons = "AUTHORS_REASONS"

// others selects the results with other reasons.
const others = `armature_build_results_total{reason!~"` + AuthorsReasons + `"`

// failures returns the number of failures within a range, given without its opening bracket.
func failures(within string) string {
	return `sum(increase(` + others + `,result="failed"}[` + within + `))`
}

// failed returns the share of failures within a range.
func failed(within string) string {
	return `(` + failures(within) + ` / sum(increase(` + others + `}[` + within + `)))`
}
