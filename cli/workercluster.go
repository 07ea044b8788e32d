package cli

import (
	"errors"
	"fmt"
	"strings"

	"github.com/spf13/cobra"

	"github.com/unitask/unitask/fleet/embedded"
)

// clusterFlags configure an embedded server in a cluster; the names are nats-server's own.
type clusterFlags struct {
	listen, name, routes, key, server string
}

func (f *clusterFlags) add(cmd *cobra.Command) {
	fl := cmd.Flags()
	fl.StringVar(&f.routes, "routes", "",
		"with --embedded, be one cluster with these servers: nats://HOST:PORT, several with commas; "+
			"this one may be among them, and three bear the loss of one")
	fl.StringVar(&f.listen, "cluster-listen", "",
		"where the other servers reach this one: HOST:PORT, or :PORT on all addresses")
	fl.StringVar(&f.key, "cluster-key", "",
		"a FILE of 64 hex digits (openssl rand -hex 32), the same at all servers: who does not have it is none of them")
	fl.StringVar(&f.name, "cluster-name", "", "the cluster's name (default unitask)")
	fl.StringVar(&f.server, "server-name", "",
		"this server's name in the cluster (default one that is made up once and kept); "+
			"one that takes the place of a host that is gone has that one's")
}

// read returns the requested cluster; nil means none.
func (f *clusterFlags) read(embeds bool) (*embedded.Cluster, error) {
	if f.listen+f.name+f.routes+f.key+f.server == "" {
		return nil, nil
	}
	if !embeds {
		return nil,
			errors.New(
				"--routes, --cluster-… and --server-name are about the server of --embedded: " +
					"a nats-server has them in its configuration")
	}
	for _, one := range [][2]string{
		{f.routes, "--routes nats://HOST:PORT,… names the servers"},
		{f.listen, "--cluster-listen HOST:PORT is where the others reach this one"},
		{f.key, "--cluster-key FILE is what they know each other by (openssl rand -hex 32 > FILE; chmod 600 FILE)"},
	} {
		if one[0] == "" {
			return nil, fmt.Errorf("servers that are joined by routes need --routes, --cluster-listen and --cluster-key: %s",
				one[1])
		}
	}
	key, err := readKey("--cluster-key", f.key)
	if err != nil {
		return nil, err
	}
	return &embedded.Cluster{Name: f.name, Listen: f.listen, Routes: strings.Split(f.routes, ","), Key: key,
		Server: f.server}, nil
}
