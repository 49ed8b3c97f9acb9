package api

// AsyncActor is a workload that works through a message queue. Source: 004.
type AsyncActor struct {
	TypeMeta   `json:",inline"`
	ObjectMeta `json:"metadata,omitempty"`

	Spec AsyncActorSpec `json:"spec"`
	// Status of an object exported from a cluster is accepted and ignored.
	Status any `json:"status,omitempty"`
}

// AsyncActorSpec is the specification of an AsyncActor.
type AsyncActorSpec struct {
	// Transport names one of spec.asya.transports in the RenderConfig. Required.
	Transport string `json:"transport"`
	// Sidecar changes the container that is added.
	Sidecar AsyaSidecar `json:"sidecar,omitempty"`
	Timeout AsyaTimeout `json:"timeout,omitempty"`
	Scaling AsyaScaling `json:"scaling,omitempty"`
	// Workload is what works. Required.
	Workload AsyaWorkload `json:"workload"`
}

// AsyaSidecar changes the container asya-sidecar.
type AsyaSidecar struct {
	// Image replaces that of the configuration.
	Image string `json:"image,omitempty"`
	// ImagePullPolicy is Always, IfNotPresent (the default) or Never.
	ImagePullPolicy string `json:"imagePullPolicy,omitempty"`
	// Resources are the container's, as in any pod. Default: none.
	Resources map[string]any `json:"resources,omitempty"`
	// Env is added to what the container gets; a variable of the same name gives way.
	Env []map[string]any `json:"env,omitempty"`
}

// AsyaTimeout bounds work, in seconds.
type AsyaTimeout struct {
	// Processing is for one message. Default 300.
	Processing *int `json:"processing,omitempty"`
	// GracefulShutdown is the pods' terminationGracePeriodSeconds. Default 30.
	GracefulShutdown *int `json:"gracefulShutdown,omitempty"`
}

// AsyaScaling is by the length of the queue, with KEDA.
type AsyaScaling struct {
	// Enabled renders a ScaledObject, which then owns the replicas. Default false.
	Enabled bool `json:"enabled,omitempty"`
	// MinReplicas and MaxReplicas default to 0 and 50.
	MinReplicas *int `json:"minReplicas,omitempty"`
	MaxReplicas *int `json:"maxReplicas,omitempty"`
	// PollingInterval and CooldownPeriod are seconds. Default 10 and 60.
	PollingInterval *int `json:"pollingInterval,omitempty"`
	CooldownPeriod  *int `json:"cooldownPeriod,omitempty"`
	// QueueLength is how many messages one replica is good for. Default 5.
	QueueLength *int          `json:"queueLength,omitempty"`
	Advanced    *AsyaAdvanced `json:"advanced,omitempty"`
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

// AsyaWorkload is a Deployment or a StatefulSet.
type AsyaWorkload struct {
	// Kind is Deployment (the default) or StatefulSet.
	Kind string `json:"kind,omitempty"`
	// Replicas counts where scaling is not enabled. Default 1.
	Replicas *int `json:"replicas,omitempty"`
	// PythonExecutable starts the runtime. Default python3.
	PythonExecutable string `json:"pythonExecutable,omitempty"`
	// Template is a pod template with one container asya-runtime. Required.
	Template map[string]any `json:"template"`
}

// AsyaSpec configures what the values of the operator's Helm chart did.
type AsyaSpec struct {
	// Transports are by name what AsyncActors refer to.
	Transports map[string]AsyaTransport `json:"transports,omitempty"`
	// SidecarImage is the default of all sidecars. Default asya-sidecar:latest.
	SidecarImage *string `json:"sidecarImage,omitempty"`
	// GatewayURL reaches the sidecars as ASYA_GATEWAY_URL. Default: that variable
	// of the container asya-runtime, or none.
	GatewayURL *string `json:"gatewayURL,omitempty"`
	// RuntimeScript is the text of asya_runtime.py. Default: the one of
	// RuntimeScriptFile, or Armature's.
	RuntimeScript *string `json:"runtimeScript,omitempty"`
	// RuntimeScriptFile is a file of the package, or beside a package that is a
	// single file, that holds the text. Hosts of functions pass manifests only:
	// there it cannot be found.
	RuntimeScriptFile *string `json:"runtimeScriptFile,omitempty"`
	// QueueNames is "namespaced" (the default: asya-<namespace>-<actor>, which
	// later releases of the sidecar expect) or "actor" (asya-<actor>, which 004
	// documents and two namespaces can clash over).
	QueueNames *string `json:"queueNames,omitempty"`
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
	VisibilityTimeout int               `json:"visibilityTimeout,omitempty"`
	WaitTimeSeconds   int               `json:"waitTimeSeconds,omitempty"`
	Credentials       *AWSCredentials   `json:"credentials,omitempty"`
	Tags              map[string]string `json:"tags,omitempty"`

	Queues AsyaQueues `json:"queues,omitempty"`
}

// AsyaQueues says what becomes of queues.
type AsyaQueues struct {
	// AutoCreate declares a queue for each actor. Default true.
	AutoCreate *bool `json:"autoCreate,omitempty"`
	// DeletionPolicy is delete (the default: a queue goes with its actor) or retain.
	DeletionPolicy string `json:"deletionPolicy,omitempty"`
}

// SecretKey is a key of a Secret.
type SecretKey struct {
	Name string `json:"name"`
	Key  string `json:"key"`
}

// AWSCredentials are static ones.
type AWSCredentials struct {
	AccessKeyID     *SecretKey `json:"accessKeyIdSecretRef,omitempty"`
	SecretAccessKey *SecretKey `json:"secretAccessKeySecretRef,omitempty"`
}

// ClusterRef names a RabbitmqCluster.
type ClusterRef struct {
	Name      string `json:"name"`
	Namespace string `json:"namespace,omitempty"`
}
