// Forge is Gitea with an SQLite that is written in Go, so that it needs neither a C compiler nor a
// database server. The pages have no styles: the front end is not in its module.
package main

import (
	"database/sql"
	"database/sql/driver"
	"os"
	"strings"

	"code.gitea.io/gitea/cmd"
	"code.gitea.io/gitea/modules/log"
	_ "code.gitea.io/gitea/modules/markup/markdown"
	"code.gitea.io/gitea/modules/setting"
	"modernc.org/sqlite"
)

// version that Gitea reports.
const version = "1.26.0"

// sqlite3 accepts the names of databases that Gitea creates for the driver in C.
type sqlite3 struct{ sqlite.Driver }

func (d *sqlite3) Open(name string) (driver.Conn, error) {
	name = strings.ReplaceAll(name, "cache=shared&", "")
	for _, pragma := range []string{"busy_timeout", "journal_mode"} {
		if before, after, ok := strings.Cut(name, "_"+pragma+"="); ok {
			value, rest, _ := strings.Cut(after, "&")
			name = before + "_pragma=" + pragma + "(" + value + ")&" + rest
		}
	}
	return d.Driver.Open(strings.TrimSuffix(name, "&"))
}

func main() {
	sql.Register("sqlite3", &sqlite3{})
	setting.EnableSQLite3 = true
	setting.SupportedDatabaseTypes = append(setting.SupportedDatabaseTypes, "sqlite3")
	setting.AppVer = version
	err := cmd.RunMainApp(cmd.NewMainApp(cmd.AppVersion{Version: version}), os.Args...)
	log.GetManager().Close()
	if err != nil {
		os.Exit(1)
	}
}
