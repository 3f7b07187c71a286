package main

import (
	"context"
	"errors"
	"fmt"
	"net/http"

	"github.com/alecthomas/kingpin/v2"
	"github.com/modelcontextprotocol/go-sdk/mcp"
	config_util "github.com/prometheus/common/config"

	"github.com/graylink/graylink/analyzer/evidence"
	"github.com/graylink/graylink/cmd/graylink/mcpserver"
	"github.com/graylink/graylink/internal/buildversion"
)

// addMCP adds the command mcp, which answers a program on standard input and output by the Model Context Protocol.
func addMCP(app *kingpin.Application, commands map[string]command) {
	cmd := app.Command("mcp", "Answer another program by the Model Context Protocol (MCP), on standard input and output, "+
		"with what an analyzer says of jobs, verdicts, paths and coverage. It only reads, and draws no conclusions of its own.")
	base := cmd.Flag("analyzer", "Base URL of the analyzer.").Default("http://127.0.0.1:9872").String()
	httpConfig := cmd.Flag("http.config", "File with the TLS and authentication settings for the analyzer "+
		"(Prometheus' HTTP client configuration).").String()
	commands[cmd.FullCommand()] = func(ctx context.Context) error {
		if _, err := evidence.ServerURL(*base); err != nil {
			return fmt.Errorf("--analyzer: %w", err)
		}
		client, err := newAnalyzerClient(*httpConfig)
		if err != nil {
			return err
		}
		server := mcpserver.New(buildversion.Version(), func(ctx context.Context, request string) ([]byte, error) {
			return readFromAnalyzer(ctx, client, *base, request)
		})
		if err := server.Run(ctx, &mcp.StdioTransport{}); err != nil && !errors.Is(err, context.Canceled) {
			return fmt.Errorf("the client on standard input: %w", err)
		}
		return nil
	}
}

// newAnalyzerClient returns a client with the settings of a file, or without any if it has no name.
func newAnalyzerClient(file string) (*http.Client, error) {
	if file == "" {
		return http.DefaultClient, nil
	}
	cfg, _, err := config_util.LoadHTTPConfigFile(file)
	if err != nil {
		return nil, fmt.Errorf("--http.config: %w", err)
	}
	client, err := config_util.NewClientFromConfig(*cfg, "graylink")
	if err != nil {
		return nil, fmt.Errorf("--http.config: %w", err)
	}
	return client, nil
}
