package install

import (
	"strings"
	"testing"

	"github.com/unitask/unitask/internal/attack"
)

// What a tool says of why it failed: the first cause comes before what came of it.
func TestToolWords(t *testing.T) {
	for name, c := range map[string]struct{ said, begins string }{
		"a plain error": {"ERROR: No matching distribution found for x\n", "No matching distribution found for x"},
		"a pip within pip": {"  error: subprocess-exited-with-error\n  \n  × pip subprocess to install build dependencies did not run successfully.\n  │ exit code: 1\n  ╰─> [5 lines of output]\n" +
			"      WARNING: Retrying (Retry(total=0, connect=None, read=None, redirect=None, status=None)) after connection broken by 'SSLError(SSLCertVerificationError(1, '[SSL: CERTIFICATE_VERIFY_FAILED] self-signed'))': /simple/setuptools/\n" +
			"      ERROR: Could not find a version that satisfies the requirement setuptools\n      [end of output]\n", "no connection: SSLError(SSLCertVerificationError(1, '[SSL: CERTIFICATE_VERIFY_FAILED] self-signed')); Could not find a version"},
		"no compiler for Python": {"  error: command 'x86_64-linux-gnu-gcc' failed: No such file or directory\n  ERROR: Failed building wheel for x\n", "it has no wheel or prebuilt binary"},
		"no compiler for npm":    {"npm error code 1\nnpm error gyp ERR! find Python\n", "it has no wheel or prebuilt binary"},
		"no make":                {"npm error sh: 1: make: not found\n", "it has no wheel or prebuilt binary"},
		"npm":                    {"npm error 404 Not Found\nnpm error A complete log of this run can be found in: /x\n", "404 Not Found"},
		"nothing":                {"Collecting x\n", ""},
	} {
		got := toolWords(c.said)
		if !strings.HasPrefix(got, c.begins) || c.begins == "" && got != "" || len(got) > 710 {
			t.Errorf("%s: %q", name, got)
		}
	}
}

// Addresses that pip and npm quote have no login, nor what a server signed.
func TestAttackToolWords(t *testing.T) {
	for name, said := range map[string]string{
		"pip's index": "ERROR: Could not open requirements file: https://someuser:verysecret@pypi.example/simple/x\n",
		"pip's proxy": "WARNING: Retrying (Retry(total=0)) after connection broken by 'ProxyError('Cannot connect to proxy " +
			"http://someuser:verysecret@proxy.example:3128', OSError())': /simple/x/\nERROR: No matching distribution\n",
		"a signed wheel": "ERROR: HTTP error 403 while getting https://files.example/x.whl?X-Amz-Signature=verysecret&u=someuser\n",
		"npm's registry": "npm error request to https://someuser:verysecret@npm.example/x failed\n",
		"cut in a login": "npm error " + strings.Repeat("x", MaxToolError-20) + " https://someuser:verysecret@npm.example/x failed\n",
	} {
		got := toolWords(said)
		if got != "" && !strings.Contains(got, "verysecret") && !strings.Contains(got, "someuser") {
			got = "an error without the login"
		}
		attack.Check(t, "what a tool of a build says: "+name, "an error without the login", got)
	}
}
