// Command controlplane runs one component of a Kubernetes control plane, so that the live tests have a real one on loopback.
//
// The first argument names the component: etcd, kube-apiserver, kube-scheduler or kube-controller-manager; the others are
// the component's own flags. The feature gates of Kubernetes are registered globally, therefore each component is a
// process of its own and only the named one builds its command.
//
// The argument keys writes the key that signs service account tokens: keys FILE.
package main

import (
	"crypto/rand"
	"crypto/rsa"
	"crypto/x509"
	"encoding/pem"
	"flag"
	"fmt"
	"net/url"
	"os"
	"os/signal"
	"syscall"
	"time"

	"github.com/spf13/cobra"
	"go.etcd.io/etcd/server/v3/embed"
	"k8s.io/component-base/cli"
	apiserver "k8s.io/kubernetes/cmd/kube-apiserver/app"
	controllermanager "k8s.io/kubernetes/cmd/kube-controller-manager/app"
	scheduler "k8s.io/kubernetes/cmd/kube-scheduler/app"
)

func main() {
	if len(os.Args) < 2 {
		fail("usage: controlplane etcd|kube-apiserver|kube-scheduler|kube-controller-manager|keys [flags]")
	}
	component := os.Args[1]
	os.Args = os.Args[1:]
	switch component {
	case "etcd":
		etcd(os.Args[1:])
	case "keys":
		keys(os.Args[1:])
	case "kube-apiserver":
		run(apiserver.NewAPIServerCommand())
	case "kube-scheduler":
		run(scheduler.NewSchedulerCommand())
	case "kube-controller-manager":
		run(controllermanager.NewControllerManagerCommand())
	default:
		fail("controlplane: no component " + component)
	}
}

func run(command *cobra.Command) {
	os.Exit(cli.Run(command))
}

// etcd serves one member without peers until SIGTERM or SIGINT. It writes without fsync: its data live as long as a test.
func etcd(arguments []string) {
	flags := flag.NewFlagSet("etcd", flag.ExitOnError)
	directory := flags.String("data-dir", "", "the directory of the data")
	client := flags.String("listen-client-url", "", "the URL that clients connect to")
	peer := flags.String("listen-peer-url", "", "the URL of the peer listener, which nobody uses")
	_ = flags.Parse(arguments)
	config := embed.NewConfig()
	config.Dir = *directory
	config.LogLevel = "error"
	config.UnsafeNoFsync = true
	config.QuotaBackendBytes = 8 << 30
	config.ListenClientUrls = []url.URL{parse(*client)}
	config.AdvertiseClientUrls = config.ListenClientUrls
	config.ListenPeerUrls = []url.URL{parse(*peer)}
	config.AdvertisePeerUrls = config.ListenPeerUrls
	config.InitialCluster = config.InitialClusterFromName(config.Name)
	server, err := embed.StartEtcd(config)
	check(err)
	stop := make(chan os.Signal, 1)
	signal.Notify(stop, syscall.SIGTERM, syscall.SIGINT)
	select {
	case <-server.Server.ReadyNotify():
	case err = <-server.Err():
		check(err)
	case <-time.After(time.Minute):
		fail("etcd: not ready after a minute")
	}
	select {
	case <-stop:
		server.Close()
	case err = <-server.Err():
		check(err)
	}
}

func keys(arguments []string) {
	if len(arguments) != 1 {
		fail("usage: controlplane keys FILE")
	}
	key, err := rsa.GenerateKey(rand.Reader, 2048)
	check(err)
	block := &pem.Block{Type: "RSA PRIVATE KEY", Bytes: x509.MarshalPKCS1PrivateKey(key)}
	check(os.WriteFile(arguments[0], pem.EncodeToMemory(block), 0o600))
}

func parse(text string) url.URL {
	parsed, err := url.Parse(text)
	check(err)
	return *parsed
}

func check(err error) {
	if err != nil {
		fail("controlplane: " + err.Error())
	}
}

func fail(message string) {
	fmt.Fprintln(os.Stderr, message)
	os.Exit(1)
}
