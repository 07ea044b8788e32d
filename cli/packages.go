package cli

import (
	"strings"
	"time"

	"github.com/unitask/unitask"
	"github.com/unitask/unitask/internal/console"
)

// packageTable lists the packages that were installed for runs.
func packageTable(rt *unitask.Runtime) (t console.Table, err error) {
	list, err := rt.Packages().List()
	var rows [][]string
	for _, l := range list {
		var locked []string
		for _, p := range l.Packages {
			locked = append(locked, p.Name+" "+p.Version)
		}
		rows = append(rows, []string{l.Key[:12], l.System + " " + safe(strings.Join(l.Asked, " ")), l.Runtime, l.Arch,
			short(strings.Join(locked, ", ")),
			mebibytes(l.Bytes), l.Built.Local().Format(time.DateTime)})
	}
	return console.Table{Head: "PACKAGES|ASKED FOR|FOR|ARCH|INSTALLED|SIZE|BUILT", Rows: rows}, err
}

// ownTable lists the custom images.
func ownTable(rt *unitask.Runtime) console.Table {
	var rows [][]string
	for _, o := range rt.Catalog().Customs() {
		var installed []string
		for _, p := range o.Packages {
			installed = append(installed, p.Name+" "+p.Version)
		}
		for _, d := range o.Debian {
			installed = append(installed, d.Name+" "+d.Version)
		}
		rows = append(rows, []string{o.Name, o.From, string(o.Arch), short(safe(strings.Join(installed, ", "))),
			short(safe(o.Description)), safe(o.File), o.Built.Local().Format(time.DateTime)})
	}
	return console.Table{Head: "YOUR IMAGE|FROM|ARCH|PACKAGES|DESCRIPTION|FILE|BUILT", Rows: rows}
}

// short returns the beginning of a text for a table.
func short(text string) string {
	const most = 60
	if runes := []rune(text); len(runes) > most {
		return string(runes[:most]) + "…"
	}
	return text
}
