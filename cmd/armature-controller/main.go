// Command armature-controller builds the images that AgentBuilds ask for, fills
// and serves the catalog of agents and tools, and renders Flux's sources.
package main

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math"
	"net"
	"net/netip"
	"os"
	"runtime/debug"
	"slices"
	"strings"

	"github.com/go-logr/logr"
	"github.com/spf13/cobra"
	"k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/klog/v2"
	ctrl "sigs.k8s.io/controller-runtime"

	"github.com/armature-dev/armature/builds/api"
	"github.com/armature-dev/armature/builds/compose"
	"github.com/armature-dev/armature/builds/controller"
	"github.com/armature-dev/armature/builds/controller/runs"
	"github.com/armature-dev/armature/builds/controller/traces"
	"github.com/armature-dev/armature/builds/registry/pins"
	"github.com/armature-dev/armature/builds/source/gitremote"
	"github.com/armature-dev/armature/catalog/ask"
	catalog "github.com/armature-dev/armature/catalog/controller"
	"github.com/armature-dev/armature/functions/api/keys"
	sources "github.com/armature-dev/armature/render/deliver/flux/controller"
	"github.com/armature-dev/armature/render/process"
	"github.com/armature-dev/armature/templates"
)

func main() {
	limitMemory()
	if err := command().Execute(); err != nil {
		fmt.Fprintln(os.Stderr, err)
		if errors.As(err, new(usageError)) {
			os.Exit(2)
		}
		os.Exit(1)
	}
}

// limitMemory lowers Go's memory limit to four fifths of GOMEMLIMIT. GOMEMLIMIT is the limit of the
// container, which also counts memory that Go does not manage.
func limitMemory() {
	if limit := debug.SetMemoryLimit(-1); limit != math.MaxInt64 {
		debug.SetMemoryLimit(limit / 5 * 4)
	}
}

// usageError reports wrong usage: the exit status is 2.
type usageError struct{ error }

func usagef(format string, a ...any) error { return usageError{fmt.Errorf(format, a...)} }

// flagsAlone refuses arguments that are not flags.
func flagsAlone(_ *cobra.Command, given []string) error {
	if len(given) > 0 {
		return usagef("unexpected argument %q: only flags are accepted", given[0])
	}
	return nil
}

func command() *cobra.Command {
	o := controller.Options{}
	var c catalogOptions
	var s sourcesOptions
	var level, pinned, limits, shard string
	var names, networks []string
	cmd := &cobra.Command{
		Use:           "armature-controller",
		Short:         "Run the controllers of AgentBuilds, of the catalog, and of RenderedSources",
		Args:          flagsAlone,
		SilenceUsage:  true,
		SilenceErrors: true,
		RunE: func(cmd *cobra.Command, _ []string) error {
			var minimum slog.Level
			if err := minimum.UnmarshalText([]byte(level)); err != nil {
				return usagef("--log-level %q: use debug, info, warn or error", level)
			}
			if err := checkControllers(names); err != nil {
				return usageError{err}
			}
			if o.Namespace == "" {
				return usagef("--namespace is missing: name the controller's own namespace, or " +
					"set POD_NAMESPACE")
			}
			var err error
			if shard != "" {
				if o.Shard, err = process.ParseShard(shard); err != nil {
					return usagef("--shard %w", err)
				}
			}
			if err := check(o); err != nil {
				return usageError{err}
			}
			if o.Isolated, err = runs.ParseLimits(limits); err != nil {
				return usagef("--max-isolated-per-namespace %w", err)
			}
			if err := checkAttest(cmd.Flags(), o.Attest); err != nil {
				return usageError{err}
			}
			if slices.Contains(names, "catalog") {
				if err := c.check(); err != nil {
					return usageError{err}
				}
			}
			if slices.Contains(names, "sources") {
				if err := s.check(); err != nil {
					return usageError{err}
				}
			}
			if o.Settings.ImagePins, err = pins.Load(pinned, cmd.Flags().Changed("image-pins"),
				templates.StepLock()); err != nil {
				return err
			}
			allowed, err := readNetworks("--git-allow-network", networks)
			if err != nil {
				return usageError{err}
			}
			o.Dial, o.Pod = gitDial(allowed), os.Getenv("POD_NAME")
			o.Log = logr.FromSlogHandler(slog.NewJSONHandler(os.Stderr,
				&slog.HandlerOptions{Level: minimum}))
			if !cmd.Flags().Changed("image-pins") && templates.StepLock() == nil {
				o.Log.Info(
					"this build has no lock of step images, so they run by tag: set --image-pins")
			}
			ctrl.SetLogger(o.Log)
			klog.SetLogger(o.Log)
			cfg, err := ctrl.GetConfig()
			if err != nil {
				return fmt.Errorf("finding the API server: %w", err)
			}
			builds := slices.Contains(names, "builds")
			var tasks []func(context.Context) error
			if builds {
				if o.Traces, err = traces.New(cmd.Context(), o.Log); err != nil {
					return err
				}
				defer o.Traces.Stop()
				tasks = append(tasks, func(ctx context.Context) error {
					return controller.Run(ctx, cfg, o)
				})
			}
			if slices.Contains(names, "catalog") {
				options := catalog.Options{Options: listenOnce(builds, o.Options)}
				tasks = append(tasks, func(ctx context.Context) error {
					return c.run(ctx, cfg, o.Settings.BuildNamespace, options)
				})
			}
			if slices.Contains(names, "sources") {
				options := s.options(listenOnce(len(names) > 1, o.Options), o.Dial)
				tasks = append(tasks, func(ctx context.Context) error {
					return sources.Run(ctx, cfg, options)
				})
			}
			return together(ctrl.SetupSignalHandler(), tasks)
		},
	}
	cmd.AddCommand(stepCommands()...)
	cmd.CompletionOptions.DisableDefaultCmd = true
	cmd.SetFlagErrorFunc(func(_ *cobra.Command, err error) error { return usageError{err} })
	f := cmd.Flags()
	f.StringSliceVar(&names, "controllers", []string{"builds"},
		"what to run: some of builds, catalog and sources")
	attestFlags(f, &o.Attest)
	c.flags(f)
	s.flags(f)
	f.StringVar(&o.Namespace, "namespace", os.Getenv("POD_NAMESPACE"),
		"the controller's own namespace: shared templates and steps, and the leader's lease")
	f.StringSliceVar(&o.Namespaces, "watch-namespaces", splitList(os.Getenv("WATCH_NAMESPACES")),
		"namespaces to watch; none means all, which needs cluster-wide rights")
	f.StringVar(&shard, "shard", "",
		"label of the objects to look after, such as sharding.fluxcd.io/key=a, or "+
			"!sharding.fluxcd.io/key; empty means all")
	f.BoolVar(&o.LeaderElection, "leader-elect", true,
		"elect a leader, so that only one of several replicas is active")
	f.StringVar(&o.MetricsAddress, "metrics-address", ":8080",
		"listen address of Prometheus metrics; 0 disables them")
	f.StringVar(&o.HealthAddress, "health-address", ":8081",
		"listen address of /healthz and /readyz; 0 disables them")
	f.IntVar(&o.Concurrency, "concurrency", 8, "number of builds to process at once")
	f.Float32Var(&o.QPS, "qps", 500, "requests a second to the API server; twice that in a burst")
	f.IntVar(&o.RebuildRate, "rebuild-rate", 10,
		"maximum number of runs per minute, and in a burst, that changed templates or steps start")
	f.IntVar(&o.MaxRunning, "max-running", 0,
		"maximum number of runs of AgentBuilds under way at once; further ones wait in a queue; "+
			"0 is unlimited")
	f.IntVar(&o.MaxRunningPerNamespace, "max-running-per-namespace", 0,
		"maximum number of runs of AgentBuilds under way at once in each namespace, whose "+
			"annotation "+keys.AnnotationMaxRunning+" may lower it; 0 is unlimited")
	f.StringVar(&o.QueueName, "queue-name", "",
		"LocalQueue of Kueue that admits the runs of builds without the label "+
			"kueue.x-k8s.io/queue-name; empty means none")
	f.StringVar(&o.WebhookAddress, "webhook-address", "",
		"listen address of webhooks for spec.trigger of builds, such as :9292; empty disables them")
	f.StringVar(&o.WebhookCertDir, "webhook-cert-dir", "",
		"folder with tls.crt and tls.key for --webhook-address; empty serves plain HTTP, "+
			"behind an Ingress")
	f.BoolVar(&o.WaitForChains, "wait-for-chains", false,
		"keep a finished run until Tekton Chains has annotated it as signed")
	f.Int64Var(&o.LogLines, "log-lines", 20,
		"number of last log lines of a failed step that status keeps; 0 keeps none")
	f.StringVar(&o.Settings.Group, "api-group", api.DefaultGroup, "API group of AgentBuild")
	f.StringVar(&o.Settings.BuildNamespace, "build-namespace", "",
		"namespace of the platform, where no tenant has rights, for the runs of templates with "+
			"attest: true or isolate: true; with --queue-name, each has the LocalQueue there "+
			"that has the name of its build's namespace; empty refuses such builds")
	f.StringVar(&o.Settings.RuntimeClass, "build-runtime-class", "",
		"RuntimeClass of the pods of isolated runs; empty leaves it to the cluster")
	f.StringVar(&limits, "max-isolated-per-namespace", "runs=8,cpu=16,memory=32Gi",
		"maximum of isolated runs under way at once for each namespace of builds, and of what "+
			"they request together; 0 is unlimited; with --queue-name, Kueue's quota is instead")
	f.StringVar(&o.Settings.ServiceAccountName, "build-service-account", "",
		"ServiceAccount of builds that set none; empty leaves it to Tekton")
	f.BoolVar(&o.Settings.CreateServiceAccount, "create-build-service-account", false,
		"create that ServiceAccount, without any rights, if it is missing")
	f.DurationVar(&o.Settings.Timeout, "build-timeout", 0,
		"timeout of builds and templates without one; 0 leaves it to Tekton")
	f.StringVar(&o.Settings.ImageMirror, "image-mirror", "",
		"registry that serves all step images, such as mirror.local/hub")
	f.StringVar(&pinned, "image-pins", "",
		"YAML file that maps step images to digests, or the armature.lock of armature pin "+
			"--steps (default: the lock of this release; \"\" pins none)")
	f.StringSliceVar(&o.Settings.PlainHTTPHosts, "plain-http-hosts", nil,
		"hosts, with or without a port, that may receive logins of Git and registries over http "+
			"as well as https")
	f.StringSliceVar(&networks, "git-allow-network", nil,
		"loopback, link-local and cloud metadata networks of Git servers and registries to "+
			"allow, such as 127.0.0.0/8")
	f.BoolVar(&o.Settings.PipelineObjects, "pipeline-objects", false,
		"refer to Pipeline objects instead of embedding them (clusters with disable-inline-spec)")
	f.StringVar(&level, "log-level", "info", "debug, info, warn or error")
	return cmd
}

// check refuses flags that would make every build fail, or that have no effect.
func check(o controller.Options) error {
	for _, n := range append([]string{o.Namespace}, o.Namespaces...) {
		if len(validation.IsDNS1123Label(n)) > 0 {
			return fmt.Errorf("%q is not a valid namespace: use lower-case letters, digits and '-'", n)
		}
	}
	switch s := o.Settings; {
	case s.BuildNamespace != "" && len(validation.IsDNS1123Label(s.BuildNamespace)) > 0:
		return fmt.Errorf(
			"--build-namespace %q is not a valid namespace: use lower-case letters, digits and '-'",
			s.BuildNamespace)
	case s.BuildNamespace != "" &&
		(s.BuildNamespace == o.Namespace || slices.Contains(o.Namespaces, s.BuildNamespace)):
		return fmt.Errorf("--build-namespace %s: name a namespace of its own, which is neither "+
			"the controller's nor watched", s.BuildNamespace)
	case s.RuntimeClass != "" && len(validation.IsDNS1123Subdomain(s.RuntimeClass)) > 0:
		return fmt.Errorf("--build-runtime-class %q is not the name of a RuntimeClass", s.RuntimeClass)
	case s.CreateServiceAccount && s.ServiceAccountName == "":
		return errors.New(
			"--create-build-service-account requires --build-service-account, which names it")
	case s.Timeout < 0:
		return fmt.Errorf("--build-timeout %s: use a positive duration, or 0", s.Timeout)
	case o.Concurrency < 1:
		return fmt.Errorf("--concurrency %d: use 1 or more", o.Concurrency)
	case o.QPS <= 0:
		return fmt.Errorf("--qps %v: use a positive number", o.QPS)
	case o.RebuildRate < 1:
		return fmt.Errorf("--rebuild-rate %d: use 1 or more", o.RebuildRate)
	case o.MaxRunning < 0:
		return fmt.Errorf("--max-running %d: use a positive number, or 0", o.MaxRunning)
	case o.MaxRunningPerNamespace < 0:
		return fmt.Errorf("--max-running-per-namespace %d: use a positive number, or 0",
			o.MaxRunningPerNamespace)
	case o.QueueName != "" && (o.MaxRunning > 0 || o.MaxRunningPerNamespace > 0):
		return errors.New("--queue-name and --max-running: the quota of Kueue limits the runs; " +
			"use one of the two")
	case o.Shard.Key != "" && (o.MaxRunning > 0 || o.MaxRunningPerNamespace > 0):
		return errors.New("--shard and --max-running: a shard does not see the runs of others; " +
			"limit all with --queue-name, by a quota of Kueue")
	case o.QueueName != "" && len(validation.IsDNS1123Label(o.QueueName)) > 0:
		return fmt.Errorf("--queue-name %q is not the name of a LocalQueue: use lower-case "+
			"letters, digits and '-'", o.QueueName)
	case o.WebhookCertDir != "" && o.WebhookAddress == "":
		return errors.New("--webhook-cert-dir requires --webhook-address")
	case o.LogLines < 0:
		return fmt.Errorf("--log-lines %d: use 0 or more", o.LogLines)
	case s.ImageMirror != "":
		if err := compose.CheckMirror(s.ImageMirror); err != nil {
			return fmt.Errorf("--image-mirror: %w", err)
		}
	}
	return nil
}

// gitDial refuses the addresses that the catalog refuses.
func gitDial(allowed []netip.Prefix) gitremote.Dial {
	dial := ask.GuardedDial(allowed)
	return func(ctx context.Context, network, address string) (net.Conn, error) {
		conn, err := dial(ctx, network, address)
		if ask.IsForbidden(err) {
			return nil, fmt.Errorf("%w: %w", gitremote.ErrForbiddenAddress, err)
		}
		return conn, err
	}
}

func splitList(text string) []string {
	if text == "" {
		return nil
	}
	return strings.Split(text, ",")
}
