#!/bin/bash
# demo-build.sh takes an image from a Git repository to a running pod, on the
# cluster of `make cluster-up`.
set -euo pipefail
cd "$(dirname "$0")/.."
export PATH=$PWD/.cache/bin:$PATH KUBECONFIG=$PWD/.cache/cluster/kubeconfig
info() { sed -n "s|^ *\"$1\": \"\(.*\)\",*\$|\1|p" .cache/cluster/info.json; }
step() { printf '\n\033[1m%s\033[0m\n' "$*"; }
registry=$(info Registry)
source=$(mktemp -d)
trap 'rm -rf "$source"' EXIT

step "armature install | kubectl apply --server-side --force-conflicts -f -"
armature install --image "$(info armature-controller)" --image-mirror "$(info Mirror)" | kubectl apply --server-side --force-conflicts -f - | tail -n 1
kubectl -n armature-system rollout status deployment/armature-controller --timeout=5m

step "A Git repository with a Dockerfile"
cp -r e2e/stories/testdata/hello/. "$source"
git -C "$source" init --quiet --initial-branch=main
git -C "$source" add .
git -C "$source" -c user.name=demo -c user.email=demo@example.com commit --quiet --message=First
git -C "$source" push --quiet --force "http://demo:$(info GitToken)@$(info HostGitHTTP | sed 's|http://||')/public/demo.git" main
sed 's/^/    /' "$source/Dockerfile"

step "armature build run hello.yaml"
kubectl create namespace demo --dry-run=client -o yaml | kubectl apply -f - >/dev/null
cat >"$source/hello.yaml" <<END
apiVersion: agent.kagenti.dev/v1alpha1
kind: AgentBuild
metadata: {name: hello, namespace: demo}
spec:
  mode: dev
  cleanupAfterBuild: false
  source: {sourceRepository: "$(info GitHTTP)/public/demo.git", sourceRevision: main}
  buildArgs:
  - {name: BASE, value: "$registry/armature/busybox:latest"}
  - {name: GREETING, value: good morning}
  buildOutput: {imageRegistry: "$registry/demo", image: hello, imageTag: v1}
END
sed 's/^/    /' "$source/hello.yaml"
armature build run "$source/hello.yaml"

step "armature build logs hello --follow"
armature build logs hello -n demo --follow
armature build run "$source/hello.yaml" --wait

step "armature build describe hello"
armature build describe hello -n demo

image=$(kubectl -n demo get agentbuild hello -o jsonpath='{.status.builtImage}')
step "kubectl run hello --image $image"
kubectl -n demo delete pod hello --ignore-not-found --wait >/dev/null
kubectl -n demo run hello --image "$image"
kubectl -n demo wait --for=condition=Ready pod/hello --timeout=2m >/dev/null
kubectl -n demo logs hello
echo
echo "make cluster-down ends the cluster."
