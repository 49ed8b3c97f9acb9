package sidecars

import (
	"slices"
	"strconv"
	"strings"

	"github.com/armature-dev/armature/functions/identity"
	"github.com/armature-dev/armature/functions/internal/block"
	"github.com/armature-dev/armature/functions/internal/scalar"
)

// AppendContainers appends the sidecars of a workload as items of the pod's init containers, and
// returns their names.
func AppendContainers(dst []byte, s *identity.Settings) (items []byte, names []string) {
	for i := range s.Profile.Sidecars {
		if x := &s.Profile.Sidecars[i]; s.Components[i].Enabled {
			dst, names = AppendContainer(dst, s, x), append(names, x.Name)
		}
	}
	return dst, names
}

// AppendContainer appends a sidecar of the workload's profile as an item of the pod's init
// containers, without indentation.
func AppendContainer(dst []byte, s *identity.Settings, x *identity.Sidecar) []byte {
	c, own := s.Component(x.Name), x.Container(s)
	return block.AppendItem(dst, 0,
		block.Plain("name", x.Name),
		block.Text("image", c.Image),
		block.Plain("imagePullPolicy", c.ImagePullPolicy),
		block.If(!x.Ends, block.Plain("restartPolicy", "Always")),
		own.Program,
		containerPorts(s, x),
		block.List("env", own.Env...),
		own.Startup,
		own.Readiness,
		resources(c),
		own.Security,
		volumeMounts(s, x),
	)
}

// containerPorts returns the ports that a sidecar's container declares.
func containerPorts(s *identity.Settings, x *identity.Sidecar) block.Node {
	if x.Ports == nil {
		return block.Node{}
	}

	var ports []block.Node
	for _, p := range x.Ports(make([]identity.Port, 0, 8), s) {
		if p.ContainerPort != "" && p.Number > 0 {
			ports = append(ports,
				block.Map("", block.Plain("name", p.ContainerPort),
					block.Int("containerPort", p.Number)))
		}
	}
	return block.List("ports", ports...)
}

func volumeMounts(s *identity.Settings, x *identity.Sidecar) block.Node {
	if x.Mounts == nil {
		return block.Node{}
	}

	var mounts []block.Node
	for _, m := range x.Mounts(s) {
		mounts = append(mounts, block.Map("",
			block.Plain("name", m.Volume),
			block.Plain("mountPath", string(scalar.AppendPath(nil, m.Path))),
			block.If(m.ReadOnly, block.Bool("readOnly", true))))
	}
	return block.List("volumeMounts", mounts...)
}

func resources(c *identity.Component) block.Node {
	quantities := func(key, cpu, memory string) block.Node {
		if cpu == "" && memory == "" {
			return block.Node{}
		}
		return block.Map(key, quantity("cpu", cpu), quantity("memory", memory))
	}
	if c.CPURequest+c.MemoryRequest+c.CPULimit+c.MemoryLimit == "" {
		return block.Node{}
	}
	return block.Map("resources",
		quantities("requests", c.CPURequest, c.MemoryRequest),
		quantities("limits", c.CPULimit, c.MemoryLimit))
}

// quantity returns a quantity, quoted if a YAML reader would read it as a number.
func quantity(key, q string) block.Node {
	if q == "" {
		return block.Node{}
	}
	if last := q[len(q)-1]; (last == 'm' || last == 'i') && q[0] >= '0' && q[0] <= '9' &&
		!strings.ContainsAny(q, " :#\"\\\n") {
		return block.Plain(key, q)
	}
	return block.Text(key, q)
}

// variable returns a variable of a container with a value of its own.
func variable(name, value string) block.Node {
	return block.Map("", block.Plain("name", name), block.Env("value", value))
}

// expanded returns a variable with references to other variables. value is the inside of a quoted
// scalar.
func expanded(name string, value []byte) block.Node {
	return block.Map("", block.Plain("name", name), block.Plain("value", `"`+string(value)+`"`))
}

func intVariable(name string, n int) block.Node { return variable(name, strconv.Itoa(n)) }

func valueFrom(name, source string, fields ...block.Node) block.Node {
	return block.Map("", block.Plain("name", name),
		block.Map("valueFrom", block.Map(source, fields...)))
}

// configured returns a variable with a value from the ConfigMap, so that a change of configuration
// changes the ConfigMap and not the pod.
func configured(s *identity.Settings, name string) block.Node {
	return valueFrom(name, "configMapKeyRef", configMapName(s), block.Plain("key", name))
}

func configMapName(s *identity.Settings) block.Node {
	return block.Plain("name", s.Scalar(identity.TokenExchangeConfigMap))
}

// secretVariable returns a variable whose value is in the key of the same name of a Secret.
func secretVariable(name, secret string) block.Node {
	return valueFrom(name, "secretKeyRef", block.Text("name", secret), block.Plain("key", name))
}

// field returns a variable whose value is a field of the pod.
func field(name, path string) block.Node {
	return valueFrom(name, "fieldRef", block.Plain("fieldPath", path))
}

// podIdentity are the variables for the pod's part of its SPIFFE ID.
var podIdentity = []block.Node{
	field("POD_NAMESPACE", "metadata.namespace"),
	field("POD_SERVICE_ACCOUNT", "spec.serviceAccountName"),
}

// startup returns a startup probe that runs every two seconds for five minutes. The next container
// starts when it succeeds.
func startup(handler block.Node) block.Node {
	return block.Map("startupProbe", handler, block.Int("periodSeconds", 2),
		block.Int("failureThreshold", 150))
}

// httpGet returns a probe of a named port by HTTP.
func httpGet(path, port string) block.Node {
	return block.Map("httpGet", block.Plain("path", path), block.Plain("port", port))
}

// tcpSocket returns a probe of a named port by TCP.
func tcpSocket(port string) block.Node { return block.Map("tcpSocket", block.Plain("port", port)) }

// words returns a list of words that need no quotes.
func words(key string, words ...string) block.Node {
	items := make([]block.Node, 0, len(words))
	for _, word := range words {
		items = append(items, block.Plain("", word))
	}
	return block.List(key, items...)
}

// Security contexts follow 001, "Security Considerations", and otherwise Pod Security "restricted"
// as far as the programs allow.

// restricted returns the security context of a program that runs as a user and its group.
func restricted(user int, more ...block.Node) block.Node {
	return block.Map("securityContext", slices.Concat(
		[]block.Node{block.Int("runAsUser", user), block.Int("runAsGroup", user)},
		more,
		[]block.Node{
			block.Bool("runAsNonRoot", true),
			block.Bool("allowPrivilegeEscalation", false),
			block.Map("capabilities", words("drop", "ALL")),
			runtimeDefault(),
		})...)
}

var (
	helperSecurity  = restricted(identity.HelperUID, block.Bool("readOnlyRootFilesystem", true))
	defaultSecurity = restricted(identity.DefaultProxyUID)
)

func proxySecurity(s *identity.Settings) block.Node {
	if s.Outbound.ProxyUID == identity.DefaultProxyUID {
		return defaultSecurity
	}
	return restricted(s.Outbound.ProxyUID)
}

func runtimeDefault() block.Node {
	return block.Map("seccompProfile", block.Plain("type", "RuntimeDefault"))
}
