package cli

import (
	"context"
	"crypto/rand"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"

	"github.com/spf13/cobra"

	"github.com/unitask/unitask/mcp"
)

// defaultListen is the address of a server without one.
const defaultListen = "127.0.0.1:7778"

func (a *app) serveCommand() *cobra.Command {
	f := mcpFlags{apis: true}
	var untilEOF bool
	cmd := &cobra.Command{
		Use:   "serve",
		Short: "Serve runs and sandboxes over HTTP to programs: its own API, E2B's, and MCP",
		Long: `Serve lets programs use unitask over HTTP. Its own API, for runs and sessions, is below
/v1; /openapi.json describes it. MCP is at /mcp, as with unitask mcp --http.
E2B's SDKs, and what builds on them, need two variables: E2B_API_URL and
E2B_SANDBOX_URL, both with this server's address. Each sandbox is a session, in its
own machine.

Callers and the ceiling are those of unitask mcp: on a loopback address your own
processes need no key, and any E2B_API_KEY will do. Elsewhere callers need one of
--token-file; unitask serve key makes it.`,
		Example: `  unitask serve
  unitask serve key alice --token-file keys
  unitask serve --listen 0.0.0.0:7778 --token-file keys --tls-cert cert.pem --tls-key key.pem`,
		Args: noArgument,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if untilEOF {
				ctx, cancel := context.WithCancel(cmd.Context())
				defer cancel()
				go func() {
					_, _ = io.Copy(io.Discard, a.std.Stdin)
					cancel()
				}()
				cmd.SetContext(ctx)
			}
			return a.mcp(cmd, f)
		},
	}
	fl := cmd.Flags()
	fl.SortFlags = false
	fl.BoolVar(&untilEOF, "until-eof", false, "end when standard input ends: for a program that starts its own server")
	fl.StringVar(&f.http, "listen", defaultListen, "the address, HOST:PORT")
	fl.StringVar(&f.domain, "domain", "", "answer for the hosts PORT-SANDBOX.DOMAIN, too")
	f.addCommon(fl)
	f.addHTTP(fl, "")
	cmd.AddCommand(a.serveKey())
	return cmd
}

// keyBytes is the length of a key's random part.
const keyBytes = 20

func (a *app) serveKey() *cobra.Command {
	var file string
	cmd := &cobra.Command{
		Use:     "key NAME",
		Short:   "Write a new caller into a file of callers, and print its key",
		Long:    "Key writes a new caller into a file of callers, and prints its key. E2B's SDKs take it as E2B_API_KEY.",
		Example: "  unitask serve key alice --token-file keys",
		Args:    cobra.ExactArgs(1),
		RunE: func(_ *cobra.Command, args []string) error {
			if file == "" {
				return usage(errors.New("serve key needs --token-file: the file of callers"))
			}
			random := make([]byte, keyBytes)
			_, _ = rand.Read(random)
			key := "e2b_" + hex.EncodeToString(random)
			if err := addToken(file, args[0], key); err != nil {
				return usage(err)
			}
			fmt.Fprintln(a.std.Stdout, key)
			return nil
		},
	}
	cmd.Flags().StringVar(&file, "token-file", "", "the file of callers, one NAME TOKEN per line; made if it is not there")
	return cmd
}

// addToken adds a caller to a file of tokens, which must be valid before and after.
func addToken(file, name, token string) error {
	text, err := os.ReadFile(file)
	if err != nil && !os.IsNotExist(err) {
		return err
	}
	if len(text) > 0 {
		if _, err := mcp.TokenFile(file); err != nil {
			return err
		}
	}
	if len(text) > 0 && !strings.HasSuffix(string(text), "\n") {
		text = append(text, '\n')
	}
	f, err := os.CreateTemp(filepath.Dir(file), filepath.Base(file)+".new-*") // only its owner may read it
	if err != nil {
		return err
	}
	defer os.Remove(f.Name())
	_, err = f.Write(fmt.Appendf(text, "%s %s\n", name, token))
	if err := errors.Join(err, f.Close()); err != nil {
		return err
	}
	auth, err := mcp.TokenFile(f.Name())
	if err != nil {
		return errors.New(strings.ReplaceAll(err.Error(), f.Name(), file))
	}
	if auth.Nobody(name) != "" {
		return fmt.Errorf("name %.80q: its line would be a comment", name)
	}
	return os.Rename(f.Name(), file)
}
