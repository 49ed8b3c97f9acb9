package sign

import (
	"bytes"
	"cmp"
	"context"
	"crypto"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os/exec"
	"strings"
	"syscall"
	"time"

	"github.com/sigstore/sigstore/pkg/cryptoutils"
	"github.com/sigstore/sigstore/pkg/signature"
	"github.com/sigstore/sigstore/pkg/signature/kms/cliplugin/common"

	"github.com/armature-dev/armature/functions/text"
)

// A key of a KMS is used by a program on the PATH, so that Armature links no cloud's client:
// sigstore-kms-NAME handles NAME://…. The protocol is that of sigstore's cliplugin. Its client
// reads an answer without a limit, and waits as long as any process keeps a pipe of the program
// open, so this package implements the calls.

const (
	// kmsTime limits the time of one call, and kmsAnswer its output in bytes.
	kmsTime   = 30 * time.Second
	kmsAnswer = 64 << 10
	// kmsWords is the number of bytes of standard error that an error message contains.
	kmsWords = 1 << 10
)

var kmsForm = text.Pattern(`^([a-z0-9][a-z0-9._-]*)://(.+)$`)

// KMSProgram returns the program that has to be on the PATH for a key of a KMS, or "" for any other
// key.
func KMSProgram(key string) string {
	parts := kmsForm().FindStringSubmatch(key)
	if parts == nil {
		return ""
	}
	switch parts[1] {
	case "k8s", "env", "file", "http", "https":
		return ""
	}
	return "sigstore-kms-" + parts[1]
}

// KMSKey is a key in a KMS. Its public key is read once.
type KMSKey struct {
	signature.Verifier
	program, resource string
}

// OpenKMS reads the public key of a key such as awskms:///alias/attest. The error is
// exec.ErrNotFound if its program is not on the PATH. Each call of the program may take 30 s.
func OpenKMS(ctx context.Context, key string) (*KMSKey, error) {
	k := &KMSKey{program: KMSProgram(key)}
	if k.program == "" {
		return nil, fmt.Errorf("%q is not a key of a KMS", key)
	}
	if _, err := exec.LookPath(k.program); err != nil {
		return nil, err
	}
	_, k.resource, _ = strings.Cut(key, "://")
	answer, err := k.call(ctx, &common.MethodArgs{MethodName: common.PublicKeyMethodName,
		PublicKey: &common.PublicKeyArgs{PublicKeyOptions: &common.PublicKeyOptions{}}}, nil)
	if err != nil {
		return nil, err
	}
	if answer.PublicKey == nil {
		return nil, k.fault(errors.New("it gives no public key"))
	}
	public, err := cryptoutils.UnmarshalPEMToPublicKey(answer.PublicKey.PublicKeyPEM)
	if err == nil {
		k.Verifier, err = signature.LoadVerifier(public, crypto.SHA256)
	}
	if err != nil {
		return nil, k.fault(fmt.Errorf("reading the public key: %w", err))
	}
	return k, nil
}

// SignMessage signs the SHA-256 digest of a message with the KMS and verifies the signature.
func (k *KMSKey) SignMessage(message io.Reader, given ...signature.SignOption) ([]byte, error) {
	text, err := io.ReadAll(message)
	if err != nil {
		return nil, err
	}
	ctx := context.Background()
	for _, option := range given {
		option.ApplyContext(&ctx)
	}
	answer, err := k.call(ctx, &common.MethodArgs{MethodName: common.SignMessageMethodName,
		SignMessage: &common.SignMessageArgs{SignOptions: &common.SignOptions{}}}, text)
	if err != nil {
		return nil, err
	}
	if answer.SignMessage == nil {
		return nil, k.fault(errors.New("it gives no signature"))
	}
	if err := k.VerifySignature(bytes.NewReader(answer.SignMessage.Signature),
		bytes.NewReader(text)); err != nil {
		return nil, k.fault(
			fmt.Errorf("the signature is not of the public key that it gave, with SHA-256: %w", err))
	}
	return answer.SignMessage.Signature, nil
}

func (k *KMSKey) fault(err error) error { return fmt.Errorf("%s: %w", k.program, err) }

// call runs the program. By the protocol, its exit status has no meaning.
func (k *KMSKey) call(ctx context.Context, method *common.MethodArgs,
	input []byte) (*common.PluginResp, error) {
	ctx, cancel := context.WithTimeout(ctx, kmsTime)
	defer cancel()
	deadline, _ := ctx.Deadline()
	arguments, err := json.Marshal(common.PluginArgs{MethodArgs: method,
		InitOptions: &common.InitOptions{
			ProtocolVersion: common.ProtocolVersion, KeyResourceID: k.resource,
			HashFunc: crypto.SHA256, CtxDeadline: &deadline,
			RPCOptions: &common.RPCOptions{CtxDeadline: &deadline}}})
	if err != nil {
		return nil, k.fault(err)
	}
	cmd := exec.CommandContext(ctx, k.program, common.ProtocolVersion, string(arguments))
	printed, words := &text.Head{Most: kmsAnswer, Full: cancel}, &text.Head{Most: kmsWords}
	cmd.Stdin, cmd.Stdout, cmd.Stderr = bytes.NewReader(input), printed, words
	cmd.WaitDelay = time.Second // for other processes that have its pipes open
	// The processes that the program has started are killed with it.
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	cmd.Cancel = func() error { return syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL) }
	ended := cmd.Run()
	if printed.More {
		return nil, k.fault(fmt.Errorf("it prints more than %d bytes", kmsAnswer))
	}
	if err := ctx.Err(); err != nil {
		return nil, k.fault(fmt.Errorf("it has no answer in time: %w", err))
	}
	var answer common.PluginResp
	if err := json.Unmarshal(printed.Kept, &answer); err != nil {
		return nil, k.fault(fmt.Errorf("it gives no answer: %w: %s", cmp.Or(ended, err),
			bytes.TrimSpace(words.Kept)))
	}
	if answer.ErrorMessage != "" {
		return nil, k.fault(errors.New(answer.ErrorMessage))
	}
	return &answer, nil
}
