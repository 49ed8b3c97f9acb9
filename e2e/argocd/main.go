// Command argocd runs the parts of Argo CD that tests need. Three of its servers are as they are
// released, with their own flags and environment:
//
//	argocd repo-server FLAGS...
//	argocd application-controller FLAGS...
//	argocd cmp-server FLAGS...
//
// Each ends with the process that started it, and so does the Redis that they use:
//
//	argocd redis
//
// is miniredis on a loopback address, which it prints. The other two are one side of an exchange
// with Argo CD:
//
//	argocd ask SOCKET REPOSITORY APPLICATION [NAME=VALUE...]
//
// is the repo-server's: it sends the repository to a plugin server and prints its answer for the
// application in it: whether the plugin takes it, which parameters it announces, and the manifests.
//
//	argocd health SCRIPT
//
// judges an object, in JSON on standard input, by a script as the application-controller does.
package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"time"

	"github.com/alicebob/miniredis/v2"
	"github.com/spf13/cobra"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"

	controller "github.com/argoproj/argo-cd/v3/cmd/argocd-application-controller/commands"
	cmpserver "github.com/argoproj/argo-cd/v3/cmd/argocd-cmp-server/commands"
	reposerver "github.com/argoproj/argo-cd/v3/cmd/argocd-repo-server/commands"
	"github.com/argoproj/argo-cd/v3/cmpserver/apiclient"
	"github.com/argoproj/argo-cd/v3/pkg/apis/application/v1alpha1"
	"github.com/argoproj/argo-cd/v3/util/cmp"
	"github.com/argoproj/argo-cd/v3/util/lua"
)

// timeout is the repo-server's default for plugins.
const timeout = 90 * time.Second

func main() {
	if err := run(os.Args[1:]); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

func run(args []string) error {
	if len(args) == 0 {
		return errors.New(
			"usage: argocd repo-server|application-controller|cmp-server|redis|ask|health ...")
	}
	servers := map[string]func() *cobra.Command{
		"repo-server": reposerver.NewCommand, "application-controller": controller.NewCommand,
		"cmp-server": cmpserver.NewCommand,
	}
	switch name, args := args[0], args[1:]; {
	case servers[name] != nil:
		go endWithParent(os.Getppid())
		server := servers[name]()
		server.SetArgs(args)
		return server.Execute()
	case name == "redis":
		return redis(os.Getppid())
	case name == "ask":
		return ask(args)
	case name == "health" && len(args) == 1:
		return health(args[0])
	default:
		return fmt.Errorf("argocd %s: unknown, or with other arguments than it takes", name)
	}
}

// endWithParent ends the program with its parent: the kernel gives an orphan another parent.
func endWithParent(parent int) {
	for os.Getppid() == parent {
		time.Sleep(500 * time.Millisecond)
	}
	fmt.Fprintln(os.Stderr, "the process that started this server is gone: ending")
	os.Exit(1)
}

// redis serves until the parent has ended. Nothing in it expires.
func redis(parent int) error {
	server := miniredis.NewMiniRedis()
	if err := server.StartAddr("127.0.0.1:0"); err != nil {
		return err
	}
	fmt.Println(server.Addr())
	endWithParent(parent)
	return nil
}

// answer is the answer of the plugin server.
type answer struct {
	Supported  bool     `json:"supported"`
	Parameters []string `json:"parameters"`
	Manifests  []string `json:"manifests"`
}

func ask(args []string) error {
	if len(args) < 3 {
		return errors.New("usage: argocd ask SOCKET REPOSITORY APPLICATION [NAME=VALUE...]")
	}
	socket, repository, application := args[0], args[1], args[2]
	env, err := environment(args[3:])
	if err != nil {
		return err
	}
	conn, err := grpc.NewClient("unix://"+socket,
		grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithDefaultCallOptions(grpc.MaxCallRecvMsgSize(apiclient.MaxGRPCMessageSize)))
	if err != nil {
		return err
	}
	defer conn.Close()
	client := apiclient.NewConfigManagementPluginServiceClient(conn)
	ctx, cancel := context.WithTimeout(context.Background(), timeout)
	defer cancel()
	send := func(to cmp.StreamSender) error {
		return cmp.SendRepoStream(ctx, application, repository, to, env, nil)
	}

	var a answer
	match, err := client.MatchRepository(ctx, grpc.WaitForReady(true))
	if err != nil {
		return err
	}
	if err := send(match); err != nil {
		return err
	}
	matched, err := match.CloseAndRecv()
	if err != nil {
		return err
	}
	a.Supported = matched.IsSupported

	announce, err := client.GetParametersAnnouncement(ctx)
	if err != nil {
		return err
	}
	if err := send(announce); err != nil {
		return err
	}
	announced, err := announce.CloseAndRecv()
	if err != nil {
		return err
	}
	for _, p := range announced.ParameterAnnouncements {
		a.Parameters = append(a.Parameters, p.Name)
	}

	generate, err := client.GenerateManifest(ctx)
	if err != nil {
		return err
	}
	if err := send(generate); err != nil {
		return err
	}
	generated, err := generate.CloseAndRecv()
	if err != nil {
		return err
	}
	a.Manifests = generated.Manifests
	return json.NewEncoder(os.Stdout).Encode(a)
}

// environment returns the environment that the repo-server makes from an Application's plugin
// parameters and its own variables.
func environment(args []string) ([]string, error) {
	env := []string{"ARGOCD_APP_NAME=agents", "ARGOCD_APP_NAMESPACE=agents",
		"ARGOCD_APP_REVISION=0123456789abcdef", "KUBE_VERSION=1.34"}
	var parameters v1alpha1.ApplicationSourcePluginParameters
	for _, arg := range args {
		entry, err := v1alpha1.NewEnvEntry(arg)
		if err != nil {
			return nil, err
		}
		parameters = append(parameters, v1alpha1.ApplicationSourcePluginParameter{Name: entry.Name,
			String_: &entry.Value})
	}
	more, err := parameters.Environ()
	return append(env, more...), err
}

// health prints how the script in a file judges the object on standard input.
func health(file string) error {
	script, err := os.ReadFile(file)
	if err != nil {
		return err
	}
	data, err := io.ReadAll(os.Stdin)
	if err != nil {
		return err
	}
	var object unstructured.Unstructured
	if err := object.UnmarshalJSON(data); err != nil {
		return err
	}
	status, err := lua.VM{}.ExecuteHealthLua(&object, string(script))
	if err != nil {
		return err
	}
	return json.NewEncoder(os.Stdout).Encode(status)
}
