package web

import (
	"fmt"
	"net/http"
	"time"

	"github.com/graylink/graylink/analyzer"
	"github.com/graylink/graylink/analyzer/paths"
	"github.com/graylink/graylink/internal/fabric"
)

type Handler struct {
	Snapshot func() analyzer.Snapshot
	Store    *paths.Store
	Graph    *fabric.Graph
	Title    string
	Now      func() time.Time
}

func (h *Handler) ServeHTTP(w http.ResponseWriter, r *http.Request) { fmt.Fprintln(w, h.Title) }
