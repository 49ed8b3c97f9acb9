package api

import (
	"bytes"
	"encoding/json"
	"strings"
)

// AsyncActor is a workload that works through a message queue. Source: 004.
type AsyncActor = Resource[AsyncActorSpec]

// AsyncActorSpec is the specification of an AsyncActor.
type AsyncActorSpec struct {
	// Transport names one of spec.asya.transports in the RenderConfig. Required with
	// generation 0.2; generation next uses the only one that is enabled.
	Transport string `json:"transport,omitempty"`
	// Sidecar changes the container that is added.
	Sidecar struct {
		// Image replaces that of the configuration.
		Image AsyaImage `json:"image,omitempty"`
		// ImagePullPolicy is Always, IfNotPresent (the default) or Never.
		ImagePullPolicy string `json:"imagePullPolicy,omitempty"`
		// Resources are the container's, as in any pod. Default: none.
		Resources map[string]any `json:"resources,omitempty"`
		// Env is added to what the container gets; a variable of the same name gives way.
		Env []map[string]any `json:"env,omitempty"`
	} `json:"sidecar,omitempty"`
	// Timeout bounds work, in seconds.
	Timeout struct {
		// Processing is for one message. Default 300.
		Processing *int `json:"processing,omitempty"`
		// GracefulShutdown is the pods' terminationGracePeriodSeconds. Default 30.
		GracefulShutdown *int `json:"gracefulShutdown,omitempty"`
	} `json:"timeout,omitempty"`
	Scaling AsyaScaling `json:"scaling,omitempty"`
	// Workload is what works. Required with generation 0.2; generation next has the
	// fields below in its place.
	Workload struct {
		// Kind is Deployment (the default) or StatefulSet.
		Kind string `json:"kind,omitempty"`
		// Replicas counts where scaling is not enabled. Default 1.
		Replicas *int `json:"replicas,omitempty"`
		// PythonExecutable starts the runtime. Default python3.
		PythonExecutable string `json:"pythonExecutable,omitempty"`
		// Template is a pod template with one container asya-runtime. Required.
		Template map[string]any `json:"template,omitempty"`
	} `json:"workload,omitempty"`

	// Flavors name EnvironmentConfigs of Crossplane whose data are parts of this spec, at
	// most 8. What the actor says replaces what they say.
	Flavors []string `json:"flavors,omitempty"`
	// Actor is the name of the resource.
	Actor string `json:"actor,omitempty"`
	// Image and Handler (module.function) are of the container asya-runtime, and
	// required; so are the optional fields that a container has under these names.
	Image           string           `json:"image,omitempty"`
	Handler         string           `json:"handler,omitempty"`
	ImagePullPolicy string           `json:"imagePullPolicy,omitempty"`
	Env             []map[string]any `json:"env,omitempty"`
	Resources       map[string]any   `json:"resources,omitempty"`
	VolumeMounts    []map[string]any `json:"volumeMounts,omitempty"`
	// SecretRefs are variables whose values are keys of Secrets.
	SecretRefs []struct {
		SecretName string `json:"secretName"`
		// Keys are keys of the Secret, and the variables that get their values.
		Keys []struct {
			Key    string `json:"key"`
			EnvVar string `json:"envVar"`
		} `json:"keys"`
	} `json:"secretRefs,omitempty"`
	// PythonExecutable starts the runtime. Default python3.
	PythonExecutable string `json:"pythonExecutable,omitempty"`
	// Replicas counts where scaling is not enabled. Default 1.
	Replicas *int `json:"replicas,omitempty"`
	// Tolerations, NodeSelector and Volumes are those of a pod.
	Tolerations  []map[string]any  `json:"tolerations,omitempty"`
	NodeSelector map[string]string `json:"nodeSelector,omitempty"`
	Volumes      []map[string]any  `json:"volumes,omitempty"`
	// Resiliency says what the sidecar does about failures. Default: nothing.
	Resiliency *struct {
		// ActorTimeout bounds work on one message, as a Go duration. Default 5m.
		ActorTimeout string           `json:"actorTimeout,omitempty"`
		Policies     map[string]any   `json:"policies,omitempty"`
		Rules        []map[string]any `json:"rules,omitempty"`
	} `json:"resiliency,omitempty"`
	// StateProxy are stores that the handler sees as files.
	StateProxy []AsyaState `json:"stateProxy,omitempty"`
	// InitContainers and Sidecars are more containers of the pod, as in any pod. No name
	// begins with "asya-".
	InitContainers []map[string]any `json:"initContainers,omitempty"`
	Sidecars       []map[string]any `json:"sidecars,omitempty"`
	// Tracing says where the sidecar sends its traces.
	Tracing *struct {
		// Endpoint is that of OTLP: tempo:4317. Default: none.
		Endpoint string `json:"endpoint,omitempty"`
	} `json:"tracing,omitempty"`

	AsyaClaim `json:",inline"`
}

// AsyaClaim is what Crossplane has in each claim, and adds to those in a cluster. An
// actor of Asya 0.5.0 or later is one.
type AsyaClaim struct {
	// CompositionSelector and CompositionRef choose a Composition by labels and by name.
	// That of the transport has the label asya.sh/transport and is named
	// asyncactor-<type>; another type than the transport's is an error.
	CompositionSelector *struct {
		MatchLabels map[string]string `json:"matchLabels,omitempty"`
	} `json:"compositionSelector,omitempty"`
	// CompositionRef names a Composition.
	CompositionRef *struct {
		Name string `json:"name"`
	} `json:"compositionRef,omitempty"`
	// The others say how Crossplane works, and a render does not.
	CompositionRevisionSelector any `json:"compositionRevisionSelector,omitempty"`
	CompositionRevisionRef      any `json:"compositionRevisionRef,omitempty"`
	CompositionUpdatePolicy     any `json:"compositionUpdatePolicy,omitempty"`
	CompositeDeletePolicy       any `json:"compositeDeletePolicy,omitempty"`
	ResourceRef                 any `json:"resourceRef,omitempty"`
	WriteConnectionSecretToRef  any `json:"writeConnectionSecretToRef,omitempty"`
	PublishConnectionDetailsTo  any `json:"publishConnectionDetailsTo,omitempty"`
}

// AsyaState is a store that the handler sees as files below a path. A connector, one
// more container of the pod, reads and writes the store.
type AsyaState struct {
	// Name is a DNS label of at most 46 characters, after which the connector is named
	// asya-state-proxy-<name>. Required, and unique in the actor.
	Name string `json:"name"`
	// Mount.Path is absolute. Required.
	Mount struct {
		Path string `json:"path"`
	} `json:"mount"`
	// WriteMode is buffered (the default: a file is sent when it is closed) or
	// passthrough (as it is written, without seeking).
	WriteMode string `json:"writeMode,omitempty"`
	// Connector is the container of a store.
	Connector struct {
		// Image is required.
		Image string `json:"image"`
		// ImagePullPolicy is Always, IfNotPresent (the default) or Never.
		ImagePullPolicy string `json:"imagePullPolicy,omitempty"`
		// Env and Resources are those of a container. Default: none.
		Env       []map[string]any `json:"env,omitempty"`
		Resources map[string]any   `json:"resources,omitempty"`
	} `json:"connector"`
}

// AsyaImage is an image: text or, in generation next, a mapping with repository, tag and
// pullPolicy, which it holds as JSON.
type AsyaImage string

// AsyaImageParts are the parts of an image. What is left out is the generation's.
type AsyaImageParts struct {
	Repository string `json:"repository,omitempty"`
	Tag        string `json:"tag,omitempty"`
	PullPolicy string `json:"pullPolicy,omitempty"`
}

// UnmarshalJSON reads text or a mapping. Anything else is an error.
func (i *AsyaImage) UnmarshalJSON(data []byte) error {
	if bytes.HasPrefix(data, []byte("{")) {
		*i = AsyaImage(data)
		return nil
	}
	return json.Unmarshal(data, (*string)(i))
}

// Parts returns the parts of an image that is a mapping; mapping is false for text.
func (i AsyaImage) Parts() (p AsyaImageParts, mapping bool, err error) {
	if !strings.HasPrefix(string(i), "{") {
		return p, false, nil
	}
	d := json.NewDecoder(strings.NewReader(string(i)))
	d.DisallowUnknownFields()
	return p, true, d.Decode(&p)
}

// AsyaScaling is by the length of the queue, with KEDA.
type AsyaScaling struct {
	// Enabled renders a ScaledObject, which then owns the replicas. Default false;
	// true for actors without spec.workload.
	Enabled *bool `json:"enabled,omitempty"`
	// MinReplicas and MaxReplicas default to 0 and 50.
	MinReplicas *int `json:"minReplicas,omitempty"`
	MaxReplicas *int `json:"maxReplicas,omitempty"`
	// MinReplicaCount and MaxReplicaCount are their names in actors without
	// spec.workload, and default to 0 and 10.
	MinReplicaCount *int `json:"minReplicaCount,omitempty"`
	MaxReplicaCount *int `json:"maxReplicaCount,omitempty"`
	// PollingInterval and CooldownPeriod are seconds. Default 10 and 60; 30 and 300
	// for actors without spec.workload.
	PollingInterval *int `json:"pollingInterval,omitempty"`
	CooldownPeriod  *int `json:"cooldownPeriod,omitempty"`
	// QueueLength is how many messages one replica is good for. Default 5.
	QueueLength *int          `json:"queueLength,omitempty"`
	Advanced    *AsyaAdvanced `json:"advanced,omitempty"`
	// AdditionalTriggers follow that of the queue. They are of actors without
	// spec.workload.
	AdditionalTriggers []AsyaTrigger `json:"additionalTriggers,omitempty"`
}

// AsyaTrigger is a trigger of KEDA.
type AsyaTrigger struct {
	// Type and Metadata are those of a scaler of KEDA. Required.
	Type     string            `json:"type"`
	Metadata map[string]string `json:"metadata"`
	// Name is that in a formula; "queue" is the trigger of the actor's queue.
	Name string `json:"name,omitempty"`
	// AuthenticationRef names a TriggerAuthentication, or a ClusterTriggerAuthentication.
	AuthenticationRef *struct {
		Name string `json:"name"`
		// Kind is TriggerAuthentication (the default) or ClusterTriggerAuthentication.
		Kind string `json:"kind,omitempty"`
	} `json:"authenticationRef,omitempty"`
	// MetricType is AverageValue, Value or Utilization. Default: the scaler's.
	MetricType       string `json:"metricType,omitempty"`
	UseCachedMetrics *bool  `json:"useCachedMetrics,omitempty"`
}

// AsyaAdvanced is KEDA's "advanced".
type AsyaAdvanced struct {
	RestoreToOriginalReplicaCount bool `json:"restoreToOriginalReplicaCount,omitempty"`
	// Formula, Target, ActivationTarget and MetricType (AverageValue or Value) are
	// KEDA's scalingModifiers.
	Formula          string `json:"formula,omitempty"`
	Target           string `json:"target,omitempty"`
	ActivationTarget string `json:"activationTarget,omitempty"`
	MetricType       string `json:"metricType,omitempty"`
}

// AsyaSpec configures what the values of the operator's Helm chart did.
type AsyaSpec struct {
	// Generation says which releases of Asya the actors are for. It decides the
	// sidecar's default image and environment, the runtime script, the names of
	// queues, and where messages end: "0.2" (0.2.0 to 0.5.0, the default) or "next"
	// (after 0.5.5). What a generation does not know is an error.
	Generation *string `json:"generation,omitempty"`
	// Transports are by name what AsyncActors refer to.
	Transports map[string]AsyaTransport `json:"transports,omitempty"`
	// SidecarImage is the default of all sidecars. Default: the generation's.
	SidecarImage *string `json:"sidecarImage,omitempty"`
	// GatewayURL reaches the sidecars as ASYA_GATEWAY_URL. Default: that variable
	// of the container asya-runtime, or none.
	GatewayURL *string `json:"gatewayURL,omitempty"`
	// RuntimeScript is the text of asya_runtime.py. Default: the one of
	// RuntimeScriptFile, or Armature's for the generation.
	RuntimeScript *string `json:"runtimeScript,omitempty"`
	// RuntimeScriptFile is a file of the package, or beside a package that is a
	// single file, that holds the text. Hosts of functions pass manifests only:
	// there it cannot be found.
	RuntimeScriptFile *string `json:"runtimeScriptFile,omitempty"`
}

// AsyaTransport is a kind of queue and where it is.
type AsyaTransport struct {
	// Enabled lets AsyncActors use it. Default false.
	Enabled bool `json:"enabled,omitempty"`
	// Type is rabbitmq or sqs. Required.
	Type   string              `json:"type"`
	Config AsyaTransportConfig `json:"config,omitempty"`
}

// AsyaTransportConfig holds what either type needs; a field of the other type is
// an error.
type AsyaTransportConfig struct {
	// Of rabbitmq. Host is required; port is 5672 and username guest by default.
	// The Secret is in the actors' namespaces.
	Host              string     `json:"host,omitempty"`
	Port              int        `json:"port,omitempty"`
	Username          string     `json:"username,omitempty"`
	PasswordSecretRef *SecretKey `json:"passwordSecretRef,omitempty"`
	Exchange          string     `json:"exchange,omitempty"`
	VHost             string     `json:"vhost,omitempty"`
	// Cluster is the RabbitmqCluster in which the topology operator makes the
	// queues. Default: what Host says, where that is <name>.<namespace>.svc….
	Cluster *ClusterRef `json:"rabbitmqClusterReference,omitempty"`

	// Of sqs. Region is required.
	Region       string `json:"region,omitempty"`
	AccountID    string `json:"accountId,omitempty"`
	ActorRoleARN string `json:"actorRoleArn,omitempty"`
	Endpoint     string `json:"endpoint,omitempty"`
	// VisibilityTimeout is seconds. Default: twice the actor's timeout.processing.
	VisibilityTimeout int `json:"visibilityTimeout,omitempty"`
	WaitTimeSeconds   int `json:"waitTimeSeconds,omitempty"`
	// Credentials are static ones.
	Credentials *struct {
		AccessKeyID     *SecretKey `json:"accessKeyIdSecretRef,omitempty"`
		SecretAccessKey *SecretKey `json:"secretAccessKeySecretRef,omitempty"`
	} `json:"credentials,omitempty"`
	Tags map[string]string `json:"tags,omitempty"`

	Queues AsyaQueues `json:"queues,omitempty"`
}

// AsyaQueues says what becomes of queues.
type AsyaQueues struct {
	// AutoCreate declares a queue for each actor. Default true.
	AutoCreate *bool `json:"autoCreate,omitempty"`
	// DeletionPolicy is delete (the default: a queue goes with its actor) or retain.
	DeletionPolicy string `json:"deletionPolicy,omitempty"`
	// ForceRecreate is accepted because the operator's chart has it. Neither the
	// operator nor a render deletes queues because of it, as a warning says.
	ForceRecreate bool `json:"forceRecreate,omitempty"`
	// DLQ declares queues for the messages that nobody could work on.
	DLQ struct {
		// Enabled declares them. Default false. SQS has one for all actors (of a
		// namespace, in generation next) and needs accountId; RabbitMQ has one each.
		Enabled bool `json:"enabled,omitempty"`
		// MaxRetryCount is how often SQS hands a message out before it goes there, and
		// RetentionDays how long SQS keeps it. Default 3 and 14. RabbitMQ uses neither.
		MaxRetryCount *int `json:"maxRetryCount,omitempty"`
		RetentionDays *int `json:"retentionDays,omitempty"`
	} `json:"dlq,omitempty"`
}

// SecretKey is a key of a Secret.
type SecretKey struct {
	Name string `json:"name"`
	Key  string `json:"key"`
}

// ClusterRef names a RabbitmqCluster.
type ClusterRef struct {
	Name      string `json:"name"`
	Namespace string `json:"namespace,omitempty"`
}
