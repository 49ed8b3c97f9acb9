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

// A key of a KMS is used by a program on the PATH, so that no cloud's client is in ours:
// sigstore-kms-NAME understands NAME://…. The protocol is that of sigstore's cliplugin.
// Its own client reads an answer without a limit, and waits as long as a process keeps a
// pipe of the program open. Therefore the calls are made here.

const (
	// kmsTime bounds one call, and kmsAnswer what it may print, in bytes.
	kmsTime   = 30 * time.Second
	kmsAnswer = 64 << 10
	// kmsWords of what the program says on standard error are in the error.
	kmsWords = 1 << 10
)

var kmsForm = text.Pattern(`^([a-z0-9][a-z0-9._-]*)://(.+)$`)

// KMSProgram returns the program that has to be on the PATH for a key of a KMS, and "" for any
// other key.
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

// KMSKey is a key that a KMS keeps. Its public half is read once.
type KMSKey struct {
	signature.Verifier
	program, resource string
}

// OpenKMS reads the public half of a key such as awskms:///alias/attest. The error is
// exec.ErrNotFound where its program is not on the PATH. The program gets 30 s for each call.
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

// SignMessage has the KMS sign the SHA-256 digest of a message, and verifies the signature.
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

// call the program. Its exit status says nothing, by the protocol.
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
	cmd.WaitDelay = time.Second // for those who have its pipes
	// The program ends with what it has started.
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
