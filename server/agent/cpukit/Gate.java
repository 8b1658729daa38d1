package cpukit;

import com.google.gson.JsonObject;
import io.netty.buffer.ByteBuf;
import io.netty.buffer.Unpooled;
import io.netty.channel.Channel;
import io.netty.channel.ChannelDuplexHandler;
import io.netty.channel.ChannelFuture;
import io.netty.channel.ChannelFutureListener;
import io.netty.channel.ChannelHandlerContext;
import io.netty.channel.ChannelOption;
import io.netty.channel.ChannelPromise;
import io.netty.channel.FixedRecvByteBufAllocator;
import io.netty.handler.codec.http.DefaultFullHttpRequest;
import io.netty.handler.codec.http.DefaultFullHttpResponse;
import io.netty.handler.codec.http.FullHttpRequest;
import io.netty.handler.codec.http.HttpContent;
import io.netty.handler.codec.http.HttpHeaderNames;
import io.netty.handler.codec.http.HttpRequest;
import io.netty.handler.codec.http.HttpResponse;
import io.netty.handler.codec.http.HttpResponseStatus;
import io.netty.handler.codec.http.HttpUtil;
import io.netty.handler.codec.http.HttpVersion;
import io.netty.handler.codec.http.LastHttpContent;
import io.netty.util.ReferenceCountUtil;
import io.netty.util.concurrent.ScheduledFuture;
import java.io.IOException;
import java.util.UUID;
import java.util.concurrent.TimeUnit;
import org.slf4j.Logger;
import org.slf4j.LoggerFactory;

/**
 * Stands between the HTTP codec and TorchServe's handlers on one connection: judges each request by its head, keeps
 * its body within the bytes all may take together, lets one request at a time through, and refuses in an orderly way:
 * answer first, then read and forget what still comes, then close. All in the connection's own event loop.
 */
public final class Gate extends ChannelDuplexHandler {
    private enum Phase {
        WAITING,
        RECEIVING,
        ANSWERING,
        REFUSED
    }

    private static final Logger logger = LoggerFactory.getLogger(Gate.class);

    /** 16 MiB within this time are 280 KB/s; as many slow ones as there is room, see Gatehouse. */
    private static final int BODY_S = 60;
    /** Of a refused request; a client that goes on sending for longer is cut off. */
    private static final int REST_S = 30;
    /** A connection nobody has asked anything on for so long, slow heads included. */
    private static final int IDLE_S = 300;
    /** TorchServe reads 4 KiB at a time; nothing keeps these buffers, so larger ones only save calls. */
    private static final int READ_BYTES = 64 << 10;

    private static final int SHOWN = 100;

    private final Gatehouse house;
    private final Judge judge;
    private ChannelHandlerContext ctx;
    private Phase phase = Phase.WAITING;
    private HttpRequest head;
    private Body body;
    private boolean whole;
    private ChannelFuture refused;
    private ScheduledFuture<?> deadline;

    /** Bytes of the budget that this connection's request holds; guarded by the gatehouse. */
    long charged;

    public Gate(Gatehouse house, Judge judge) {
        this.house = house;
        this.judge = judge;
    }

    /** What TorchServe sets on every connection cuts answers off: SO_LINGER 0 turns each close into a reset. */
    public static void prepare(Channel channel) {
        channel.config().setOption(ChannelOption.SO_LINGER, -1);
        channel.config().setRecvByteBufAllocator(new FixedRecvByteBufAllocator(READ_BYTES));
    }

    @Override
    public void handlerAdded(ChannelHandlerContext context) {
        ctx = context;
    }

    @Override
    public void channelActive(ChannelHandlerContext context) {
        if (!house.connect()) {
            refuse(Refusal.CROWDED);
        } else {
            within(IDLE_S, ctx::close);
        }
        context.fireChannelActive();
    }

    @Override
    public void channelInactive(ChannelHandlerContext context) {
        cancelDeadline();
        house.disconnect();
        if (phase == Phase.ANSWERING) {
            Jobs.forget(context.channel());
        }
        house.leave(this);
        context.fireChannelInactive();
    }

    @Override
    public void channelRead(ChannelHandlerContext context, Object message) {
        try {
            if (message instanceof HttpRequest && phase == Phase.WAITING) {
                begin((HttpRequest) message);
            }
            if (message instanceof HttpContent) {
                receive((HttpContent) message);
            }
        } finally {
            ReferenceCountUtil.release(message);
        }
    }

    private void begin(HttpRequest request) {
        head = request;
        whole = false;
        Refusal refusal = house.isDraining() ? Refusal.ENDING : judge.judge(request);
        long length = refusal == null ? Judge.length(request) : 0;
        if (refusal == null && !house.enter(this, Body.atOnce(length))) {
            refusal = Refusal.FULL;
        }
        if (refusal != null) {
            refuse(refusal);
            return;
        }
        phase = Phase.RECEIVING;
        body = new Body(length);
        within(BODY_S, () -> refuse(Refusal.SLOW));
        if (HttpUtil.is100ContinueExpected(request)) {
            ctx.writeAndFlush(
                    new DefaultFullHttpResponse(HttpVersion.HTTP_1_1, HttpResponseStatus.CONTINUE, Unpooled.EMPTY_BUFFER));
        }
    }

    private void receive(HttpContent content) {
        boolean last = content instanceof LastHttpContent;
        whole = whole || last;
        if (phase == Phase.REFUSED && last) {
            refused.addListener(ChannelFutureListener.CLOSE);
        } else if (phase == Phase.RECEIVING) {
            keep(content.content());
            if (last && phase == Phase.RECEIVING) {
                pass((LastHttpContent) content);
            }
        }
    }

    private void keep(ByteBuf part) {
        int lacking = body.lacks(part.readableBytes());
        if (body.size() + part.readableBytes() > judge.largest()) {
            refuse(judge.tooLarge((long) body.size() + part.readableBytes()));
        } else if (lacking > 0 && !house.take(this, lacking)) {
            refuse(Refusal.FULL);
        } else {
            if (lacking > 0) {
                body.grow(lacking);
            }
            body.add(part);
        }
    }

    private void pass(LastHttpContent last) {
        cancelDeadline();
        house.received(this);
        byte[] bytes = body.whole();
        FullHttpRequest request = join(bytes, last);
        Refusal refusal = last.decoderResult().isSuccess() ? judge.judgeWhole(request, bytes) : Refusal.CUT;
        if (refusal != null) {
            request.release();
            refuse(refusal);
            return;
        }
        phase = Phase.ANSWERING;
        // The next request of this connection waits in the socket: answers keep their order, and memory its bound.
        ctx.channel().config().setAutoRead(false);
        ctx.fireChannelRead(request);
    }

    private FullHttpRequest join(byte[] bytes, LastHttpContent last) {
        body = null;
        // Of a form's fields TorchServe takes the whole array behind them, where there is one (NettyUtils.getBytes).
        ByteBuf content =
                Forms.isForm(head)
                        ? ctx.alloc().directBuffer(bytes.length).writeBytes(bytes)
                        : Unpooled.wrappedBuffer(bytes);
        FullHttpRequest request =
                new DefaultFullHttpRequest(
                        head.protocolVersion(),
                        head.method(),
                        head.uri(),
                        content,
                        head.headers(),
                        last.trailingHeaders());
        HttpUtil.setTransferEncodingChunked(request, false);
        HttpUtil.set100ContinueExpected(request, false);
        request.headers().set(HttpHeaderNames.CONTENT_LENGTH, bytes.length);
        return request;
    }

    @Override
    public void write(ChannelHandlerContext context, Object message, ChannelPromise promise) {
        // TorchServe keeps every connection open, and HTTP/1.0 waits for its end.
        boolean last = head != null && !HttpUtil.isKeepAlive(head);
        if (message instanceof HttpResponse) {
            prepare((HttpResponse) message, last);
        }
        if (message instanceof LastHttpContent) {
            ChannelFuture written = context.write(message, promise.unvoid()).addListener(done -> next());
            if (last) {
                written.addListener(ChannelFutureListener.CLOSE);
            }
        } else {
            context.write(message, promise);
        }
    }

    private static void prepare(HttpResponse response, boolean last) {
        // TorchServe says 507 of a batch whose worker died. It can be asked again, and a proxy knows 503.
        if (response.status().equals(HttpResponseStatus.INSUFFICIENT_STORAGE)) {
            response.setStatus(HttpResponseStatus.SERVICE_UNAVAILABLE);
        }
        if (response.status().code() == 503) {
            response.headers().set(HttpHeaderNames.RETRY_AFTER, Refusal.RETRY_AFTER_S);
        }
        if (last) {
            HttpUtil.setKeepAlive(response, false);
        }
    }

    /** The answer is out. */
    private void next() {
        house.leave(this);
        if (phase == Phase.ANSWERING) {
            phase = Phase.WAITING;
            head = null;
            within(IDLE_S, ctx::close);
            ctx.channel().config().setAutoRead(true);
        }
    }

    /** Called by other connections' threads. */
    void evict() {
        ctx.executor()
                .execute(
                        () -> {
                            if (phase == Phase.RECEIVING) {
                                refuse(Refusal.SLOW);
                            }
                        });
    }

    private void refuse(Refusal refusal) {
        boolean unsent = phase == Phase.WAITING && head != null && HttpUtil.is100ContinueExpected(head);
        phase = Phase.REFUSED;
        body = null;
        house.leave(this);
        String id = UUID.randomUUID().toString();
        log(refusal, id);
        Counters.count(refusal.status());
        refused = ctx.writeAndFlush(refusal.toResponse(id));
        within(REST_S, ctx::close);
        if (whole || unsent) {
            refused.addListener(ChannelFutureListener.CLOSE);
        }
    }

    private void log(Refusal refusal, String id) {
        if (refusal.status() == 401 && !Strangers.mayLog()) {
            return;
        }
        JsonObject line = new JsonObject();
        line.addProperty("cpu_kit", "refused");
        line.addProperty("request_id", id);
        line.addProperty("status", refusal.status());
        line.addProperty("cause", refusal.text());
        if (refusal.status() == 401) {
            line.addProperty("others_unlogged", Strangers.takeUnlogged());
        }
        if (head != null && head.decoderResult().isSuccess()) {
            String uri = head.uri();
            line.addProperty("request", head.method() + " " + uri.substring(0, Math.min(SHOWN, uri.length())));
        }
        logger.info("{}", line);
    }

    @Override
    public void exceptionCaught(ChannelHandlerContext context, Throwable cause) {
        if (!(cause instanceof IOException)) { // a client that goes away in the middle is nothing to report
            logger.warn("a connection is closed", cause);
        }
        context.close();
    }

    private void within(int seconds, Runnable otherwise) {
        cancelDeadline();
        deadline = ctx.executor().schedule(otherwise, seconds, TimeUnit.SECONDS);
    }

    private void cancelDeadline() {
        if (deadline != null) {
            deadline.cancel(false);
        }
    }
}
