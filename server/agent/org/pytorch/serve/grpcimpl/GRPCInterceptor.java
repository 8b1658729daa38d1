package org.pytorch.serve.grpcimpl;

import cpukit.Nothing;
import io.grpc.Metadata;
import io.grpc.ServerCall;
import io.grpc.ServerCallHandler;
import io.grpc.ServerInterceptor;
import io.grpc.Status;
import org.pytorch.serve.util.ConnectorType;

/**
 * Stands in for TorchServe's class of this name (by Replacement): refuses every gRPC call before its message is read.
 * TorchServe always listens for gRPC, and what comes there passes by the gate and its budget.
 */
public class GRPCInterceptor implements ServerInterceptor {
    public GRPCInterceptor(ConnectorType type) {}

    @Override
    public <A, B> ServerCall.Listener<A> interceptCall(
            ServerCall<A, B> call, Metadata headers, ServerCallHandler<A, B> next) {
        call.close(Status.UNIMPLEMENTED.withDescription("gRPC is not served here; use REST"), new Metadata());
        return new Nothing<>();
    }
}
