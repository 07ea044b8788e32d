package image

import (
	"context"
	"maps"
	"os"
	"path/filepath"
	"regexp"
	"slices"
)

var (
	debStanza    = regexp.MustCompile(`(?ms)^Package: (\S+)$.*?^Version: (\S+)$`)
	debCandidate = regexp.MustCompile(`(?m)^(\S+):\n +Installed: .*\n +Candidate: (\S+)$`)
)

// takeRevisions treats installed packages as the archive's newer revisions of the same upstream versions, and reports
// whether there are any. Header packages need the exact revision of their library, and the archive no longer has the
// old
// revision.
func (a *debApt) takeRevisions(ctx context.Context, status []byte) (taken bool) {
	there := map[string]string{}
	for _, m := range debStanza.FindAllSubmatch(status, -1) {
		there[string(m[1])] = string(m[2])
	}
	out, _, err := a.apt(ctx, a.state, "apt-cache", append([]string{"policy"}, slices.Sorted(maps.Keys(there))...)...)
	if err != nil {
		return false
	}
	text := string(status)
	for _, m := range debCandidate.FindAllStringSubmatch(out, -1) {
		if name, has := m[1], there[m[1]]; has != "" && has != m[2] && upstream(has) == upstream(m[2]) {
			stanza := regexp.MustCompile(`(?ms)(^Package: ` + regexp.QuoteMeta(name) + `$.*?^Version: )\S+$`)
			text, taken = stanza.ReplaceAllString(text, "${1}"+m[2]), true
		}
	}
	return taken && os.WriteFile(filepath.Join(a.state, "status"), []byte(text), 0o644) == nil
}
