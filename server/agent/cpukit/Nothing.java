package cpukit;

import io.grpc.ServerCall;

/** Listens to a call that is closed already. */
public final class Nothing<A> extends ServerCall.Listener<A> {}
