package cli

import (
	"crypto/sha256"
	"crypto/subtle"
	"encoding/hex"
	"errors"
	"fmt"
	"os"
	"strings"
	"syscall"
	"unicode/utf8"

	"github.com/spf13/cobra"

	"github.com/unitask/unitask"
	"github.com/unitask/unitask/internal/history"
	"github.com/unitask/unitask/record"
)

func (a *app) verifyCommand() *cobra.Command {
	var signature, signers string
	cmd := &cobra.Command{
		Use:   "verify RUN | FILE SHA256 | SUMS --signature FILE",
		Short: "Check that a run's record, or a file, is as it was",
		Long: `Check that a run's record is as it was when the run ended: verify compares its files
and artifacts with the digests in run.json, and run.json with the one in the audit log. It
names each file that differs, is missing or is extra, and then ends with exit code 1. RUN
is a run's id, a unique prefix of one, or "last". unitask audit verify checks the log.

With a digest, verify compares it with the SHA-256 of any file. With a signature, it checks that
the home's key (or one of --signers) signed SUMS, and that each file in that list is as it says.`,
		Example: `  unitask verify last
  unitask verify results.csv 9f86d081884c7d659a2feaa0c55ad015a3bf4f1b2b0b822cd15d6c15b0f00a08`,
		Args: cobra.RangeArgs(1, 2),
		ValidArgsFunction: func(cmd *cobra.Command, args []string, begin string) ([]string, cobra.ShellCompDirective) {
			if len(args) > 0 {
				return nil, cobra.ShellCompDirectiveNoFileComp
			}
			return beginning(a.runIDs(cmd.Context()), begin), cobra.ShellCompDirectiveDefault
		},
		RunE: func(cmd *cobra.Command, args []string) error {
			switch {
			case signature == "" && signers != "":
				return usage(errors.New("--signers says who may have made a signature: --signature names it"))
			case signature != "" && len(args) == 2:
				return usage(errors.New("a list of digests with a signature takes no digest"))
			case signature != "":
				return a.verifySigned(cmd, args[0], signature, signers)
			case len(args) == 2:
				return a.verifyFile(cmd, args[0], args[1])
			}
			return a.withRuntime(a.verifyRun)(cmd, args)
		},
	}
	cmd.Flags().StringVar(&signature, "signature", "", "a signature of unitask sign, of a list of digests")
	cmd.Flags().StringVar(&signers, "signers", "",
		"a file of allowed signers, as ssh-keygen reads it (default the home's key)")
	return cmd
}

func (a *app) verifyRun(cmd *cobra.Command, args []string, rt *unitask.Runtime) error {
	id, err := rt.Runs().Find(args[0])
	if errors.Is(err, record.ErrNotFound) {
		if _, e := os.Lstat(args[0]); e == nil {
			return hint(usage(err), "unitask verify FILE SHA256 for a file")
		}
		return usage(err)
	}
	if err != nil {
		return err
	}
	v, err := rt.History().Verify(cmd.Context(), id)
	switch {
	case errors.Is(err, history.ErrNotEnded):
		return usage(err)
	case errors.Is(err, history.ErrNoDigests):
		a.code = 1
		return err
	case err != nil:
		return err
	}
	n := len(v.Differences) + v.More
	if n > 0 {
		a.code = 1
	}
	return a.report(v, func() {
		var rows [][]string
		for _, d := range v.Differences {
			rows = append(rows, []string{string(d.Change), safe(d.Path), safe(d.Detail)})
		}
		switch {
		case n == 0:
			a.ui.line("%s as when the run %s ended", count(v.Files, "file"), id)
		case v.More > 0:
			rows = append(rows, []string{"", "", fmt.Sprintf("and %d more", v.More)})
			fallthrough
		default:
			a.ui.table("CHANGE|FILE|DETAIL", rows)
			a.ui.note("the record of run %s is not as it was: %s", id, count(n, "difference"))
		}
		if !v.AuditLog {
			a.ui.note("compared with run.json alone: the audit log has no digest of it. It has none of a session's steps, and " +
				"of runs of an older unitask")
		}
	})
}

// verifyFile compares a file with a digest.
func (a *app) verifyFile(cmd *cobra.Command, name, digest string) error {
	want, err := hex.DecodeString(digest)
	if err != nil || len(want) != sha256.Size {
		why := "it is not hexadecimal"
		if n := utf8.RuneCountInString(digest); n != hex.EncodedLen(sha256.Size) {
			why = fmt.Sprintf("it has %s, not 64 hexadecimal digits", count(n, "character"))
		}
		return hint(usage(fmt.Errorf("%.100q is no SHA-256 digest: %s", digest, why)), "unitask verify FILE SHA256")
	}
	f, err := os.OpenFile(name, os.O_RDONLY|syscall.O_NONBLOCK, 0) // a FIFO that nobody writes to does not wait
	if err != nil {
		return usage(err)
	}
	defer f.Close()
	info, err := f.Stat()
	if err != nil {
		return err
	}
	if !info.Mode().IsRegular() {
		return usage(fmt.Errorf("%s is no regular file", safe(name)))
	}
	sum, err := record.DigestOf(cmd.Context(), f, info.Size())
	if err != nil {
		return fmt.Errorf("read %s: %w", safe(name), err)
	}
	got, err := hex.DecodeString(sum)
	if err != nil {
		return err
	}
	same := subtle.ConstantTimeCompare(got, want) == 1
	if !same {
		a.code = 1
	}
	return a.report(map[string]any{"file": name, "sha256": sum, "same": same}, func() {
		if same {
			a.ui.line("%s has this SHA-256", safe(name))
			return
		}
		a.ui.note("%s differs: its SHA-256 is %s, not %s", safe(name), sum, strings.ToLower(digest))
	})
}
