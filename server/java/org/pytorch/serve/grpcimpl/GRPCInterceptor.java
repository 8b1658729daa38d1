package org.pytorch.serve.grpcimpl;

import io.grpc.Metadata;
import io.grpc.ServerCall;
import io.grpc.ServerCallHandler;
import io.grpc.ServerInterceptor;
import io.grpc.Status;
import org.pytorch.serve.util.ConnectorType;

/**
 * Stands in for TorchServe's class of this name, which lies behind it on the class path: rejects every gRPC call
 * before its message is read. TorchServe 0.12 always listens for gRPC, on TCP, where any user of the machine can
 * call it; REST is served on Unix sockets, which have an owner.
 */
public class GRPCInterceptor implements ServerInterceptor {
    public GRPCInterceptor(ConnectorType type) {}

    @Override
    public <A, B> ServerCall.Listener<A> interceptCall(
            ServerCall<A, B> call, Metadata headers, ServerCallHandler<A, B> next) {
        call.close(Status.UNIMPLEMENTED.withDescription("gRPC is not served here; use REST"), new Metadata());
        return new ServerCall.Listener<A>() {};
    }
}
