// Package cli has the parts that the commands of armature share: arguments and flags, output,
// questions, the terminal, packages and their revisions, and access to clusters.
package cli

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"strconv"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/armature-dev/armature/functions/text"
)

// Run executes a command and returns the exit status: 0 done, 1 findings or failure, 2 usage, 3
// something is in progress.
func Run(ctx context.Context, root *cobra.Command) int {
	root.SetArgs(withPath(root, os.Args[1:]))
	cmd, err := root.ExecuteContextC(ctx)
	var status ExitStatus
	switch {
	case err == nil:
		return 0
	case errors.Is(err, ErrFindings):
		return 1
	case errors.As(err, &status):
		return int(status)
	case IsUsage(err):
		fmt.Fprintf(os.Stderr, "%s: %v\nRun '%[1]s --help' for usage.\n", cmd.CommandPath(), err)
		return 2
	}
	PrintError(err)
	return 1
}

// ErrFindings is the error of a command whose findings on standard error explain the failure.
var ErrFindings = errors.New("findings of severity error")

// ErrInterrupted is the error of a command that Ctrl-C ended.
var ErrInterrupted = errors.New("interrupted: nothing was written")

// ExitStatus is the exit status of a command for which 1 does not mean failure, or that
// distinguishes more than success and failure.
type ExitStatus int

// InProgress means that nothing failed, but not everything is ready.
const InProgress = ExitStatus(3)

func (s ExitStatus) Error() string { return "exit status " + strconv.Itoa(int(s)) }

// usageError reports wrong usage: the exit status is 2.
type usageError struct{ error }

// Usage marks an error as wrong usage.
func Usage(err error) error { return usageError{err} }

// Usagef returns an error of wrong usage.
func Usagef(format string, a ...any) error { return usageError{fmt.Errorf(format, a...)} }

// IsUsage reports whether an error is wrong usage.
func IsUsage(err error) bool { return errors.As(err, &usageError{}) }

// Args reports a wrong number of arguments as wrong usage that names the argument. It also refuses
// to read a configuration or a lock from standard input.
func Args(check cobra.PositionalArgs) cobra.PositionalArgs {
	return func(cmd *cobra.Command, given []string) error {
		for _, name := range [...]string{"config", "lock"} {
			if f := cmd.Flags().Lookup(name); f != nil && f.Value.String() == "-" {
				return Usagef("--%s cannot be standard input, which has manifests: name a file", name)
			}
		}
		err := check(cmd, given)
		if err == nil || IsUsage(err) {
			return err
		}
		words := strings.Fields(cmd.Use)[1:]
		if len(given) < len(words) && check(cmd, append(slices.Clone(given), "")) == nil ||
			len(given) == 0 && len(words) > 0 {
			return Usagef("%s is missing", strings.TrimSuffix(words[len(given)], "..."))
		}
		if len(given) == 0 {
			return Usage(err)
		}
		return Usagef("unexpected argument %q", given[len(given)-1])
	}
}

// Group makes cmd a command that only has subcommands. A call without a subcommand, or with an
// unknown one, is wrong usage, and the error names the subcommands.
func Group(cmd *cobra.Command, subcommands ...*cobra.Command) {
	cmd.AddCommand(subcommands...)
	cmd.RunE = func(cmd *cobra.Command, given []string) error {
		if len(given) > 0 {
			return UnknownCommand(cmd, given[0])
		}
		var names []string
		for _, c := range subcommands {
			names = append(names, c.Name())
		}
		return Usagef("name a subcommand: %s", strings.Join(names, ", "))
	}
}

// UnknownCommand returns an error that suggests similar commands.
func UnknownCommand(cmd *cobra.Command, given string) error {
	if cmd.SuggestionsMinimumDistance <= 0 {
		cmd.SuggestionsMinimumDistance = 2
	}
	problem := fmt.Sprintf("unknown command %q", given)
	meant := cmd.SuggestionsFor(given)
	for _, c := range cmd.Commands() {
		// The name that other tools use takes precedence over a similar spelling.
		if slices.Contains(c.SuggestFor, given) {
			meant = []string{c.Name()}
		}
	}
	if len(meant) > 0 {
		problem += fmt.Sprintf(", did you mean %s?", strings.Join(meant, ", "))
	}
	return Usage(errors.New(problem))
}

// FlagError converts an error of pflag to wrong usage, and suggests a similar flag.
func FlagError(cmd *cobra.Command, err error) error {
	var wrong *pflag.InvalidValueError
	// The error of a word already names the flag.
	if usage := (usageError{}); errors.As(err, &wrong) && errors.As(wrong.Unwrap(), &usage) {
		return usage
	}
	var unknown *pflag.NotExistError
	if !errors.As(err, &unknown) {
		return Usage(err)
	}
	var names []string
	cmd.Flags().VisitAll(func(f *pflag.Flag) { names = append(names, f.Name) })
	given := unknown.GetSpecifiedName()
	if near := text.Nearest(given, names); near != "" {
		return Usagef("%w, did you mean --%s?", err, near)
	}
	return Usage(err)
}

// withPath accepts PATH or FILE as -f too, like kubectl.
func withPath(root *cobra.Command, args []string) (out []string) {
	cmd, _, err := root.Find(args)
	if err != nil || !strings.Contains(cmd.Use, " PATH") && !strings.Contains(cmd.Use, " FILE") ||
		cmd.Flags().ShorthandLookup("f") != nil ||
		cmd.InheritedFlags().ShorthandLookup("f") != nil {
		return args
	}
	for i, arg := range args {
		file, joined := strings.CutPrefix(arg, "--filename=")
		if !joined && !strings.HasPrefix(arg, "--") {
			if file, joined = strings.CutPrefix(arg, "-f"); joined {
				file = strings.TrimPrefix(file, "=")
			}
		}
		switch {
		case arg == "--":
			return append(out, args[i:]...)
		case arg == "-f", arg == "--filename":
		case joined:
			out = append(out, file)
		default:
			out = append(out, arg)
		}
	}
	return out
}

// word is the value of a flag that takes one of a few words.
type word struct {
	value      *string
	flag, what string
	words      []string
}

// WordFlag adds a flag that takes one of a few words, which completions offer. what names such a
// word in errors.
func WordFlag(cmd *cobra.Command, value *string, name, shorthand, initial, usage, what string,
	words ...string) {
	*value = initial
	cmd.Flags().VarP(&word{value, name, what, words}, name, shorthand, usage)
	CompleteFlag(cmd, name, func() []string { return words })
}

func (w *word) String() string {
	if w.value == nil {
		return ""
	}
	return *w.value
}

func (w *word) Type() string { return "string" }

func (w *word) Set(text string) error {
	*w.value = text
	return Among(w.flag, w.what, text, w.words)
}

// Among returns an error if text is not one of the words of a flag.
func Among(flag, what, text string, words []string) error {
	if slices.Contains(words, text) {
		return nil
	}
	return Usagef("unknown %s %q for --%s: choose from %s", what, text, flag, strings.Join(words, ", "))
}

// ChoiceFlag adds a flag that takes one of a few words, or none.
func ChoiceFlag(cmd *cobra.Command, value *string, name, empty string, words ...string) {
	last := len(words) - 1
	WordFlag(cmd, value, name, "", "", strings.Join(words[:last], ", ")+" or "+words[last]+
		" (default: "+empty+")", "value", words...)
}

// CompleteFlag offers the values of a flag, which may depend on other flags.
func CompleteFlag(cmd *cobra.Command, flag string, values func() []string) {
	if err := cmd.RegisterFlagCompletionFunc(flag,
		func(*cobra.Command, []string, string) ([]string, cobra.ShellCompDirective) {
			return values(), cobra.ShellCompDirectiveNoFileComp
		}); err != nil {
		panic(err) // the flag is not there
	}
}

// FlagNames lists the flags that a command has so far.
func FlagNames(cmd *cobra.Command) (names []string) {
	cmd.Flags().VisitAll(func(f *pflag.Flag) { names = append(names, f.Name) })
	return names
}

// FlagsAmong returns an error with the reason if a flag is set that taken does not accept.
func FlagsAmong(cmd *cobra.Command, taken func(name string) bool, reason string) (err error) {
	cmd.Flags().Visit(func(f *pflag.Flag) {
		if err == nil && f.Name != "help" && !taken(f.Name) {
			err = Usagef("--%s %s", f.Name, reason)
		}
	})
	return err
}

// ReadFile reads a file, or standard input for "-". what names the content in errors.
func ReadFile(cmd *cobra.Command, what, name string) (text []byte, err error) {
	if name == "-" {
		text, err = io.ReadAll(interruptibleReader{cmd.Context(), cmd.InOrStdin()})
	} else {
		text, err = os.ReadFile(name)
	}
	if err != nil {
		return nil, fmt.Errorf("reading %s: %w", what, err)
	}
	return text, nil
}

// Interruptibly returns when read returns or the user interrupts it: nothing else can end a read of
// a terminal or a pipe.
func Interruptibly[T any](ctx context.Context, read func() (T, error)) (T, error) {
	type result struct {
		value T
		err   error
	}
	done := make(chan result, 1)
	go func() {
		value, err := read()
		done <- result{value, err}
	}()
	select {
	case got := <-done:
		return got.value, got.err
	case <-ctx.Done():
		var none T
		return none, ErrInterrupted
	}
}

// interruptibleReader reads until the user interrupts it.
type interruptibleReader struct {
	ctx context.Context
	in  io.Reader
}

func (r interruptibleReader) Read(p []byte) (int, error) {
	text, err := Interruptibly(r.ctx, func() ([]byte, error) {
		text := make([]byte, len(p)) // an interrupted read must not write to p
		n, err := r.in.Read(text)
		return text[:n], err
	})
	return copy(p, text), err
}
