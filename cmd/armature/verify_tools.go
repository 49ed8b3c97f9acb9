package main

import (
	"fmt"
	"path/filepath"
	"slices"

	"github.com/spf13/cobra"

	"github.com/armature-dev/armature/cmd/internal/cli"
	"github.com/armature-dev/armature/functions/krm"
	"github.com/armature-dev/armature/functions/tools"
	"github.com/armature-dev/armature/render"
	"github.com/armature-dev/armature/render/source"
)

// verifyTools compares what the tool servers of a package offer with its lock.
func verifyTools(cmd *cobra.Command, path string, in *cli.Input, servers *cli.ToolServers) error {
	src, opt, findings, err := in.Open(cmd, path, "")
	if err != nil {
		return err
	}
	var after tools.Side
	if !krm.Failed(findings) {
		var more []krm.Finding
		cluster := cli.Cluster{}
		if after.Definitions, after.Locked, more, err = servers.Ask(cmd, src, opt, cluster.Loader().ClientConfig); err != nil {
			return err
		}
		findings = append(findings, more...)
	}
	if krm.Failed(findings) {
		return in.Report(cmd, findings)
	}
	lock, folder := render.LockFile, in.Folder
	if in.Lock != "" {
		lock, folder = in.Lock, filepath.Dir(in.Lock)
	}
	var before tools.Side
	if opt.Lock != nil {
		before.Locked = opt.Lock.Spec.Tools
	}
	known, more, err := source.FindTools(folder, opt.Lock)
	if err != nil {
		return err
	}
	before.Definitions, findings = known, append(findings, more...)
	changes := tools.Compare(before, after)
	if _, err := fmt.Fprint(cmd.OutOrStdout(), tools.Text(changes)); err != nil {
		return err
	}
	for _, of := range changed(changes) {
		place := krm.Place{File: lock, Object: of}
		findings = append(findings, krm.Finding{Rule: "verify/tools", Severity: krm.Error, Place: place, Message: "the server offers other tools than the lock has",
			Hint: "review the change, then run `armature pin --tools` and commit armature.lock"})
	}
	if err := in.Report(cmd, findings); err != nil {
		return err
	}
	if in.Talks() {
		fmt.Fprintf(cmd.ErrOrStderr(), "verified: %s offer the tools of %s\n", krm.Count(len(after.Locked), "tool server"), lock)
	}
	return nil
}

// changed gives the servers of changes, each once.
func changed(changes []tools.Change) (servers []krm.Ref) {
	for _, c := range changes {
		ref := krm.Ref{Kind: c.Server.Kind, Namespace: c.Server.Namespace, Name: c.Server.Name}
		if !slices.Contains(servers, ref) {
			servers = append(servers, ref)
		}
	}
	return servers
}
