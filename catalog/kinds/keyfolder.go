package kinds

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"time"

	"sigs.k8s.io/controller-runtime/pkg/log"

	"github.com/armature-dev/armature/functions/multi"
)

// Limits of a folder with keys.
const (
	keyPeriod   = 10 * time.Second // how often it is read again
	maxKeyFiles = 256
	maxKeyFile  = 64 << 10 // bytes
)

// keyFolder has the keys of a folder, which changes when the ConfigMap behind it does.
type keyFolder struct {
	mu   sync.Mutex
	keys CardKeys
	read time.Time
	last string // what was wrong
}

// now returns the keys of a folder. What is wrong with a file is logged once, and the other
// files count.
func (k *keyFolder) now(ctx context.Context, folder string) CardKeys {
	k.mu.Lock()
	defer k.mu.Unlock()
	if folder == "" || !k.read.IsZero() && time.Since(k.read) < keyPeriod {
		return k.keys
	}
	files, err := keyFiles(folder)
	keys, unread := ReadCardKeys(files)
	k.keys, k.read = keys, time.Now()
	err = multi.Errors(err, unread)
	text := ""
	if err != nil {
		text = err.Error()
	}
	if text != "" && text != k.last {
		log.FromContext(ctx).Error(err, "reading the keys of agent cards", "folder", folder)
	}
	k.last = text
	return k.keys
}

// keyFiles reads a folder. Names that begin with a dot are those of the kubelet.
func keyFiles(folder string) (files map[string][]byte, err error) {
	list, err := os.ReadDir(folder)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	if len(list) > maxKeyFiles {
		return nil, fmt.Errorf("it has more than %d files", maxKeyFiles)
	}
	files = make(map[string][]byte)
	for _, e := range list {
		if strings.HasPrefix(e.Name(), ".") {
			continue
		}
		info, problem := os.Stat(filepath.Join(folder, e.Name()))
		switch {
		case problem == nil && !info.Mode().IsRegular():
			problem = fmt.Errorf("%s: not a file", e.Name())
		case problem == nil && info.Size() > maxKeyFile:
			problem = fmt.Errorf("%s: more than %d bytes", e.Name(), maxKeyFile)
		case problem == nil:
			files[e.Name()], problem = os.ReadFile(filepath.Join(folder, e.Name()))
		}
		err = multi.Errors(err, problem)
	}
	return files, err
}
