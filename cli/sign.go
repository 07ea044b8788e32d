package cli

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/unitask/unitask"
	"github.com/unitask/unitask/internal/audit"
	"github.com/unitask/unitask/internal/regular"
	"github.com/unitask/unitask/internal/signing"
	"github.com/unitask/unitask/record"
)

// sumsFile is the name of a list of digests; its signature has the ending .sig.
const sumsFile = "SHA256SUMS"

func (a *app) signCommand() *cobra.Command {
	var out string
	var public bool
	cmd := &cobra.Command{
		Use:   "sign RUN",
		Short: "Sign the files that a run left in /out",
		Long: `Check a run's record, and write the digests of the files that its code left in
/out (SHA256SUMS, as sha256sum does) with a signature of the home's key (SHA256SUMS.sig, as
ssh-keygen -Y sign does). unitask verify --signature checks both, and so do sha256sum and ssh-keygen.`,
		Example: `  unitask inspect last --out results
  unitask sign last --out results
  unitask verify results/SHA256SUMS --signature results/SHA256SUMS.sig
  unitask sign --public`,
		Args: cobra.MaximumNArgs(1),
		RunE: a.withRuntime(func(cmd *cobra.Command, args []string, rt *unitask.Runtime) error {
			switch {
			case public && len(args) > 0:
				return usage(errors.New("--public signs nothing: leave the run away"))
			case public:
				key, err := signing.Key(rt.Images().Home())
				if err != nil {
					return err
				}
				a.ui.line("%s", strings.TrimSpace(signing.Signer(key.PublicKey())))
				return nil
			case len(args) == 0:
				return usage(errors.New("which run? unitask runs ls lists them"))
			}
			return a.sign(cmd, rt, args[0], out)
		}),
	}
	cmd.Flags().StringVar(&out, "out", ".", "the folder that gets the two files")
	cmd.Flags().BoolVar(&public, "public", false, "print the home's public key, as a line for a file of allowed signers")
	return cmd
}

// sign writes the digests of a run's artifacts and their signature.
func (a *app) sign(cmd *cobra.Command, rt *unitask.Runtime, run, out string) error {
	id, err := rt.Runs().Find(run)
	if errors.Is(err, record.ErrNotFound) {
		return usage(err)
	}
	if err != nil {
		return err
	}
	checked, err := rt.History().Verify(cmd.Context(), id)
	if err != nil {
		return usage(err)
	}
	if n := len(checked.Differences) + checked.More; n > 0 {
		a.code = 1
		return hint(fmt.Errorf("nothing is signed: the record of run %s is not as it was", id), "unitask verify "+id)
	}
	in, err := rt.History().Inspect(id, 0)
	if err != nil {
		return err
	}
	var list []signing.Sum
	for _, art := range in.Ended.Artifacts {
		list = append(list, signing.Sum{Path: art.Path, SHA256: art.SHA256})
	}
	if list == nil {
		return usage(fmt.Errorf("run %s left no file in /out", id))
	}
	key, err := signing.Key(rt.Images().Home())
	if err != nil {
		return err
	}
	text := signing.Sums(list)
	sig, err := signing.Sign(key, text)
	if err != nil {
		return err
	}
	sums := filepath.Join(out, sumsFile)
	if err := writeNew(sums, text); err != nil {
		return usage(err)
	}
	if err := writeNew(sums+".sig", sig); err != nil {
		return errors.Join(usage(err), os.Remove(sums))
	}
	if err := rt.Audit().Append(audit.Entry{Time: time.Now(), Kind: audit.ArtifactSigned, Run: id, Via: "cli",
		Detail: map[string]any{"files": len(list)}}); err != nil { // no signature without an entry
		return errors.Join(err, os.Remove(sums), os.Remove(sums+".sig"))
	}
	return a.report(map[string]any{"run": id, "files": len(list), "sums": sums, "signature": sums + ".sig"}, func() {
		a.ui.note("signed %s of run %s: %s, %s.sig", count(len(list), "file"), id, safe(sums), safe(sums))
	})
}

// writeNew writes a file that must not exist.
func writeNew(name string, text []byte) error {
	f, err := os.OpenFile(name, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o644)
	if err != nil {
		return err
	}
	_, err = f.Write(text)
	return errors.Join(err, f.Close())
}

// maxSums bounds a list of digests, and its signature, when they are read.
const maxSums = 16 << 20

// verifySigned checks the signature of a list of digests, and each file in it. The signers are the home's own key, or
// those of a file.
func (a *app) verifySigned(cmd *cobra.Command, name, signature, signers string) error {
	text, err := regular.Read(name, maxSums)
	if err != nil {
		return usage(err)
	}
	sig, err := regular.Read(signature, maxSums)
	if err != nil {
		return usage(err)
	}
	allowed, err := a.allowedSigners(signers)
	if err != nil {
		return err
	}
	who, err := signing.Verify(text, sig, allowed)
	if err != nil {
		a.code = 1
		return fmt.Errorf("%s: %w", safe(signature), err)
	}
	list, err := signing.ParseSums(text)
	if err != nil {
		return usage(fmt.Errorf("%s: %w", safe(name), err))
	}
	var rows [][]string
	for _, s := range list {
		if why := a.differs(cmd, filepath.Join(filepath.Dir(name), s.Path), s.SHA256); why != "" {
			rows = append(rows, []string{safe(s.Path), why})
		}
	}
	if len(rows) > 0 {
		a.code = 1
	}
	return a.report(map[string]any{"signer": who, "files": len(list), "differ": len(rows)}, func() {
		if len(rows) == 0 {
			a.ui.line("%s as %s signed", count(len(list), "file"), safe(who))
			return
		}
		a.ui.table("FILE|DIFFERENCE", rows)
		a.ui.note("%s not as %s signed", count(len(rows), "file"), safe(who))
	})
}

// allowedSigners returns a file of allowed signers, or the line of the home's own key.
func (a *app) allowedSigners(file string) ([]byte, error) {
	if file != "" {
		text, err := regular.Read(file, maxSums)
		return text, usageOf(err)
	}
	home, err := a.homeFolder()
	if err != nil {
		return nil, err
	}
	key, err := signing.Key(home)
	if err != nil {
		return nil, err
	}
	return []byte(signing.Signer(key.PublicKey())), nil
}

// differs returns how a file differs from a digest; "" if it does not.
func (a *app) differs(cmd *cobra.Command, name, digest string) string {
	f, st, err := regular.Open(name)
	if err != nil {
		return safe(err.Error())
	}
	defer f.Close()
	sum, err := record.DigestOf(cmd.Context(), f, st.Size())
	if err != nil {
		return safe(err.Error())
	}
	if sum != digest {
		return "its SHA-256 is " + sum
	}
	return ""
}
