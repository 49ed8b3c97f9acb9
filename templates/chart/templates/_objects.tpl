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
{{- if hasSuffix ".yaml" . -}}
{{- range splitList "\n---\n" ($root.Files.Get (printf "files/%s" $at) | required (printf "files/%s is not in the chart" $at)) }}
{{ include "armature.object" (dict "root" $root "object" (fromYaml .)) }}
{{- end -}}
{{- else -}}
{{ include "armature.kustomization" (dict "root" $root "path" $at) }}
{{- end -}}
{{- end -}}
{{- end -}}

{{/*
armature.object prints one object as the values want it. The Namespace is left
out: Helm needs it before the chart (--create-namespace). CRDs stay when the
release goes, and the objects of users with them.
*/}}
{{- define "armature.object" -}}
{{- $o := .object -}}
{{- $v := .root.Values -}}
{{- $namespace := .root.Release.Namespace -}}
{{- if ne $o.kind "Namespace" -}}
{{- if eq $o.kind "CustomResourceDefinition" -}}
{{- $_ := set $o.metadata "annotations" (merge (dict "helm.sh/resource-policy" "keep") (get $o.metadata "annotations" | default dict)) -}}
{{- end -}}
{{- if not (has $o.kind (list "CustomResourceDefinition" "ClusterRole" "ClusterRoleBinding")) -}}
{{- $_ := set $o.metadata "namespace" $namespace -}}
{{- end -}}
{{- range get $o "subjects" | default list -}}
{{- $_ := set . "namespace" $namespace -}}
{{- end -}}
{{- if eq $o.kind "Deployment" -}}
{{- $c := first $o.spec.template.spec.containers -}}
{{- if $v.image -}}
{{- $_ := set $c "image" $v.image -}}
{{- end -}}
{{- if and $v.imageMirror (eq $o.metadata.name "armature-controller") -}}
{{- $_ := set $c "args" (append $c.args (printf "--image-mirror=%s" $v.imageMirror)) -}}
{{- end -}}
{{- if and $v.gitAllowNetwork (eq $o.metadata.name "armature-controller") -}}
{{- $_ := set $c "args" (append $c.args (printf "--git-allow-network=%s" (join "," $v.gitAllowNetwork))) -}}
{{- end -}}
{{- end -}}
---
{{ toYaml $o }}
{{- end -}}
{{- end -}}
