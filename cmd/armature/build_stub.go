package main

import "github.com/spf13/cobra"

func buildLintCommand() *cobra.Command     { return &cobra.Command{Use: "lint"} }
func buildRunCommand() *cobra.Command      { return &cobra.Command{Use: "run"} }
func buildListCommand() *cobra.Command     { return &cobra.Command{Use: "list"} }
func buildDescribeCommand() *cobra.Command { return &cobra.Command{Use: "describe"} }
func buildLogsCommand() *cobra.Command     { return &cobra.Command{Use: "logs"} }
func buildCancelCommand() *cobra.Command   { return &cobra.Command{Use: "cancel"} }
func buildRerunCommand() *cobra.Command    { return &cobra.Command{Use: "rerun"} }
