package sign_test

import (
	"errors"
	"os"
	"testing"

	"github.com/armature-dev/armature/render/deliver/sign"
)

// A key is decrypted once, and again when its Secret has another one or another password.
func TestOpenKey(t *testing.T) {
	f := setup(t)
	read := func(name string) []byte {
		private, _ := f.locked(name)
		text, err := os.ReadFile(private)
		if err != nil {
			t.Fatal(err)
		}
		return text
	}
	ours, theirs := read("ours"), read("theirs")
	opened, err := sign.OpenKey(ours, []byte(secret), nil)
	if err != nil {
		t.Fatal(err)
	}
	if again, err := sign.OpenKey(append([]byte{}, ours...), []byte(secret), opened); err != nil ||
		again != opened {
		t.Errorf("the same key was decrypted again: %v", err)
	}
	if other, err := sign.OpenKey(theirs, []byte(secret), opened); err != nil || other == opened {
		t.Errorf("another key: %v", err)
	}
	if _, err := sign.OpenKey(ours, []byte("another"), opened); !errors.As(err, new(*sign.KeyError)) {
		t.Errorf("another password: %v, want a KeyError", err)
	}
	f.sign(sign.Signer{Opened: opened})
	f.sign(sign.Signer{PrivateKey: ours,
		Password: func() ([]byte, error) { return []byte(secret), nil }})
	if _, _, bundles := f.attachments(); bundles != 2 {
		t.Errorf("%d bundles, want 2: an opened key signs as its file does", bundles)
	}
}
