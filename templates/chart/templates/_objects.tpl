{{/*
The chart has no manifests of its own. files/ leads to those that `armature
install` and kustomize read, and this walks through their kustomizations: their
resources, in their order, each object placed in the release's namespace.

armature.kustomization prints the objects of one folder. Its argument has root,
the top-level context, and path below files/.
*/}}
{{- define "armature.kustomization" -}}
{{- $root := .root -}}
{{- $path := .path -}}
{{- $text := $root.Files.Get (printf "files/%s/kustomization.yaml" $path) | required (printf "files/%s/kustomization.yaml is not in the chart" $path) -}}
{{- range (fromYaml $text).resources -}}
{{- $at := clean (printf "%s/%s" $path .) -}}
{{- if not (hasSuffix ".yaml" .) -}}
{{ include "armature.kustomization" (dict "root" $root "path" $at) }}
{{- else if or (ne $path "crds/catalog") (has (first (splitList "_" .)) $root.Values.catalog.crds) -}}
{{ include "armature.file" (dict "root" $root "path" $at "namespace" $root.Release.Namespace) }}
{{- end -}}
{{- end -}}
{{- end -}}

{{/*
armature.file prints the objects of one file, whose path is below files/. CRDs of
AgentBuild and the rights on it are those of the chosen API group.
*/}}
{{- define "armature.file" -}}
{{- $root := .root -}}
{{- $namespace := .namespace -}}
{{- $text := $root.Files.Get (printf "files/%s" .path) | required (printf "files/%s is not in the chart" .path) -}}
{{- if or (hasPrefix "crds/agent.kagenti.dev_" .path) (and (eq (base .path) "role.yaml") (not (hasPrefix "install/catalog/" .path))) -}}
{{- $text = replace "agent.kagenti.dev" $root.Values.apiGroup $text -}}
{{- end -}}
{{- range splitList "\n---\n" $text }}
{{ include "armature.object" (dict "root" $root "object" (fromYaml .) "namespace" $namespace) }}
{{- end -}}
{{- end -}}

{{/*
armature.object prints one object as the values want it. The release's Namespace is
left out: Helm needs it before the chart (--create-namespace). CRDs stay when the
release goes, and the objects of users with them.
*/}}
{{- define "armature.object" -}}
{{- $o := .object -}}
{{- $namespace := .namespace -}}
{{- $release := .root.Release.Namespace -}}
{{- if eq $o.kind "Namespace" -}}
{{- $_ := set $o.metadata "name" $namespace -}}
{{- end -}}
{{- if or (ne $o.kind "Namespace") (ne $namespace $release) -}}
{{- if eq $o.kind "CustomResourceDefinition" -}}
{{- $_ := set $o.metadata "annotations" (merge (dict "helm.sh/resource-policy" "keep") (get $o.metadata "annotations" | default dict)) -}}
{{- end -}}
{{- if not (has $o.kind (list "Namespace" "CustomResourceDefinition" "ClusterRole" "ClusterRoleBinding")) -}}
{{- $_ := set $o.metadata "namespace" $namespace -}}
{{- end -}}
{{- range get $o "subjects" | default list -}}
{{- $_ := set . "namespace" $release -}}
{{- end -}}
{{- if and (eq $o.kind "NetworkPolicy") .root.Values.buildEgress (eq $namespace (include "armature.builds" .root.Values)) -}}
{{- include "armature.egress" (dict "shipped" $o.spec.egress "rules" .root.Values.buildEgress) -}}
{{- $_ := set $o.spec "egress" .root.Values.buildEgress -}}
{{- end -}}
{{- if and .root.Values.monitoring.labels (hasPrefix "monitoring.coreos.com/" $o.apiVersion) -}}
{{- $_ := set $o.metadata "labels" .root.Values.monitoring.labels -}}
{{- end -}}
{{- if eq $o.kind "Deployment" -}}
{{- include "armature.deployment" (dict "root" .root "object" $o) -}}
{{- end }}
---
{{- $program := trimSuffix "-metrics" $o.metadata.name -}}
{{- if and .root.Values.shards (has $program (list "armature-controller" "armature-catalog" "armature-sources")) (has $o.kind (list "Deployment" "Service" "NetworkPolicy" "PodDisruptionBudget")) }}
{{ include "armature.shard" (dict "text" (toYaml $o) "shard" "!sharding.fluxcd.io/key") }}
{{- $halves := splitn "\nspec:\n" 2 (regexReplaceAll "(?m)^ *- --webhook-address=.*\n" (toYaml $o) "") -}}
{{- range .root.Values.shards -}}
{{- $metadata := regexReplaceAll "(?m)^  name: .*$" $halves._0 (printf "${0}-%s" .) -}}
{{- $spec := regexReplaceAll (printf "(?m)/name: %s$" $program) $halves._1 (printf "${0}-%s" .) | replace "armature-sources.$" (printf "armature-sources-%s.$" .) -}}
{{- $text := printf "%s\nspec:\n%s" $metadata $spec }}
---
{{ include "armature.shard" (dict "text" $text "shard" (printf "sharding.fluxcd.io/key=%s" .)) }}
{{- end -}}
{{- else }}
{{ toYaml $o }}
{{- end -}}
{{- end -}}
{{- end -}}

{{/*
armature.shard prints an object whose program looks after a shard.
*/}}
{{- define "armature.shard" -}}
{{- regexReplaceAll "(?m)^( *)- --health-address=.*\n" .text (printf "${0}${1}- --shard=%s\n" .shard) -}}
{{- end -}}

{{/*
armature.builds is the namespace of isolated runs, empty for none.
*/}}
{{- define "armature.builds" -}}
{{- .buildNamespace | default (ternary "armature-builds" "" (eq .mode "cluster")) -}}
{{- end -}}

{{/*
armature.egress fails where rules, but for DNS, have an address that the shipped ones leave
out, and prints nothing. Of IPv6 it compares the first 32 bits.
*/}}
{{- define "armature.egress" -}}
{{- $shipped := .shipped -}}
{{- range .rules -}}
{{- $dns := not (empty .ports) -}}
{{- range .ports -}}
{{- if or (ne (toString .port) "53") .endPort -}}{{- $dns = false -}}{{- end -}}
{{- end -}}
{{- range ternary (list) .to $dns -}}
{{- with .ipBlock -}}
{{- $block := . -}}
{{- range $shipped -}}{{- range .to -}}{{- range dig "ipBlock" "except" (list) . -}}
{{- $secret := . -}}
{{- $bits := min 32 (last (splitList "/" $secret)) (last (splitList "/" $block.cidr)) -}}
{{- if and (eq (contains ":" $secret) (contains ":" $block.cidr)) (not (has $secret $block.except)) -}}
{{- if eq (include "armature.network" (dict "cidr" $secret "bits" $bits)) (include "armature.network" (dict "cidr" $block.cidr "bits" $bits)) -}}
{{- fail (printf "buildEgress has %s, where clouds tell a machine its secrets: name a smaller network than %s, or add it to except" $secret $block.cidr) -}}
{{- end -}}
{{- end -}}
{{- end -}}{{- end -}}{{- end -}}
{{- end -}}
{{- end -}}
{{- end -}}
{{- end -}}

{{/*
armature.network prints the first bits, 32 at most, of the address of a CIDR.
*/}}
{{- define "armature.network" -}}
{{- $address := first (splitList "/" .cidr) -}}
{{- $n := 0 -}}
{{- if contains ":" $address -}}
{{- range slice (append (splitList ":" $address) "") 0 2 -}}{{- $n = add (mul $n 65536) (int64 (printf "0x%s" (default "0" .))) -}}{{- end -}}
{{- else -}}
{{- range splitList "." $address -}}{{- $n = add (mul $n 256) (int64 .) -}}{{- end -}}
{{- end -}}
{{- range until (int (sub 32 .bits)) -}}{{- $n = div $n 2 -}}{{- end -}}
{{- $n -}}
{{- end -}}

{{/*
armature.deployment changes a Deployment as the values want it, and prints
nothing.
*/}}
{{- define "armature.deployment" -}}
{{- $v := .root.Values -}}
{{- $o := .object -}}
{{- $c := first $o.spec.template.spec.containers -}}
{{- if $v.image -}}
{{- $_ := set $c "image" $v.image -}}
{{- else if ne .root.Chart.AppVersion "0.0.0" -}}
{{- $_ := set $c "image" (regexReplaceAll ":[^:/]+$" $c.image (printf ":%s" .root.Chart.AppVersion)) -}}
{{- end -}}
{{- if eq $v.mode "namespaced" -}}
{{- $watched := prepend $v.watch .root.Release.Namespace | uniq | join "," -}}
{{- $_ := set $c "env" (append $c.env (dict "name" "WATCH_NAMESPACES" "value" $watched)) -}}
{{- end -}}
{{- if eq $o.metadata.name "armature-controller" -}}
{{- if $v.imageMirror -}}
{{- $_ := set $c "args" (append $c.args (printf "--image-mirror=%s" $v.imageMirror)) -}}
{{- end -}}
{{- if $v.plainHTTPHosts -}}
{{- $_ := set $c "args" (append $c.args (printf "--plain-http-hosts=%s" (join "," $v.plainHTTPHosts))) -}}
{{- end -}}
{{- if $v.gitAllowNetwork -}}
{{- $_ := set $c "args" (append $c.args (printf "--git-allow-network=%s" (join "," $v.gitAllowNetwork))) -}}
{{- end -}}
{{- if $v.maxRunning -}}
{{- $_ := set $c "args" (append $c.args (printf "--max-running=%d" (int $v.maxRunning))) -}}
{{- end -}}
{{- if $v.maxRunningPerNamespace -}}
{{- $_ := set $c "args" (append $c.args (printf "--max-running-per-namespace=%d" (int $v.maxRunningPerNamespace))) -}}
{{- end -}}
{{- if $v.queueName -}}
{{- $_ := set $c "args" (append $c.args (printf "--queue-name=%s" $v.queueName)) -}}
{{- end -}}
{{- with include "armature.builds" $v -}}
{{- $_ := set $c "args" (append $c.args (printf "--build-namespace=%s" .)) -}}
{{- end -}}
{{- if $v.buildRuntimeClass -}}
{{- $_ := set $c "args" (append $c.args (printf "--build-runtime-class=%s" $v.buildRuntimeClass)) -}}
{{- end -}}
{{- if $v.maxIsolatedPerNamespace -}}
{{- $_ := set $c "args" (append $c.args (printf "--max-isolated-per-namespace=%s" $v.maxIsolatedPerNamespace)) -}}
{{- end -}}
{{- if $v.attestKey -}}
{{- $_ := set $c "args" (append $c.args (printf "--attest-key=%s" $v.attestKey)) -}}
{{- end -}}
{{- if $v.keyless.fulcioURL -}}
{{- $folder := "/var/run/secrets/sigstore" -}}
{{- $_ := set $c "args" (concat $c.args (list (printf "--attest-fulcio-url=%s" $v.keyless.fulcioURL) (printf "--attest-timestamp-url=%s" $v.keyless.timestampURL) (printf "--attest-trusted-root=%s/trusted_root.json" $folder))) -}}
{{- $_ := set $c "volumeMounts" (append $c.volumeMounts (dict "name" "sigstore" "mountPath" $folder "readOnly" true)) -}}
{{- $token := dict "serviceAccountToken" (dict "audience" "sigstore" "expirationSeconds" 600 "path" "token") -}}
{{- $root := dict "configMap" (dict "name" $v.keyless.trustedRoot "items" (list (dict "key" "trusted_root.json" "path" "trusted_root.json"))) -}}
{{- $_ := set $o.spec.template.spec "volumes" (append $o.spec.template.spec.volumes (dict "name" "sigstore" "projected" (dict "sources" (list $token $root)))) -}}
{{- end -}}
{{- if ne $v.apiGroup "agent.kagenti.dev" -}}
{{- $_ := set $c "args" (append $c.args (printf "--api-group=%s" $v.apiGroup)) -}}
{{- end -}}
{{- else if eq $o.metadata.name "armature-catalog" -}}
{{- with include "armature.builds" $v -}}
{{- $_ := set $c "args" (append $c.args (printf "--build-namespace=%s" .)) -}}
{{- end -}}
{{- if $v.catalog.storeSecret -}}
{{- $args := list -}}
{{- range $c.args -}}
{{- $args = append $args (ternary "--catalog-store-file=/etc/catalog/address" . (hasPrefix "--catalog-store=" .)) -}}
{{- end -}}
{{- $mounts := list (dict "name" "data" "mountPath" "/etc/catalog" "readOnly" true) -}}
{{- range $c.volumeMounts -}}
{{- if ne .name "data" -}}{{- $mounts = append $mounts . -}}{{- end -}}
{{- end -}}
{{- $volumes := list (dict "name" "data" "secret" (dict "secretName" $v.catalog.storeSecret)) -}}
{{- range $o.spec.template.spec.volumes -}}
{{- if ne .name "data" -}}{{- $volumes = append $volumes . -}}{{- end -}}
{{- end -}}
{{- $_ := set $c "args" $args -}}
{{- $_ := set $c "volumeMounts" $mounts -}}
{{- $_ := set $o.spec.template.spec "volumes" $volumes -}}
{{- $_ := set $o.spec "replicas" 2 -}}
{{- $_ := set $o.spec "strategy" (dict "type" "RollingUpdate") -}}
{{- end -}}
{{- end -}}
{{- end -}}
