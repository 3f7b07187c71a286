// Package datamodels is NVSentinel's protocol of health events, generated from health_event.proto.
package datamodels

//go:generate protoc --go_out=. --go_opt=paths=source_relative --go-grpc_out=. --go-grpc_opt=paths=source_relative health_event.proto
