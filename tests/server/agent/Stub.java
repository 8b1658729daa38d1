package cpukit;

import io.netty.bootstrap.ServerBootstrap;
import io.netty.buffer.Unpooled;
import io.netty.channel.Channel;
import io.netty.channel.ChannelHandlerContext;
import io.netty.channel.ChannelInitializer;
import io.netty.channel.SimpleChannelInboundHandler;
import io.netty.channel.nio.NioEventLoopGroup;
import io.netty.channel.socket.nio.NioServerSocketChannel;
import io.netty.handler.codec.http.DefaultFullHttpResponse;
import io.netty.handler.codec.http.FullHttpRequest;
import io.netty.handler.codec.http.HttpResponseStatus;
import io.netty.handler.codec.http.HttpServerCodec;
import io.netty.handler.codec.http.HttpUtil;
import io.netty.handler.codec.http.HttpVersion;
import io.netty.handler.codec.http.multipart.DefaultHttpDataFactory;
import io.netty.handler.codec.http.multipart.HttpPostRequestDecoder;
import io.netty.handler.flow.FlowControlHandler;
import java.net.InetSocketAddress;
import java.nio.charset.StandardCharsets;
import java.time.Duration;
import java.util.Queue;
import java.util.concurrent.ConcurrentLinkedQueue;
import java.util.concurrent.TimeUnit;
import org.pytorch.serve.util.NettyUtils;

/**
 * The gate in front of a handler that answers "LENGTH DESCRIBE UNANSWERED" after the milliseconds in its path, or
 * 503 for /full; /hold is answered after /release, and /held says how many wait for that. Prints its port. Arguments: bytes of all bodies, connections, bytes of one body.
 */
public final class Stub {
    private static final Duration SLOW = Duration.ofMillis(300);
    private static final Queue<Runnable> HELD = new ConcurrentLinkedQueue<>();

    private Stub() {}

    public static void main(String[] arguments) throws InterruptedException {
        Gatehouse house = new Gatehouse(Long.parseLong(arguments[0]), Integer.parseInt(arguments[1]), SLOW);
        int largest = Integer.parseInt(arguments[2]);
        NioEventLoopGroup group = new NioEventLoopGroup(2);
        ServerBootstrap server = new ServerBootstrap().group(group).channel(NioServerSocketChannel.class);
        server.childHandler(
                new ChannelInitializer<Channel>() {
                    @Override
                    public void initChannel(Channel channel) {
                        Gate.prepare(channel);
                        channel.pipeline().addLast(new HttpServerCodec());
                        channel.pipeline().addLast(new FlowControlHandler());
                        Judge judge = new Judge("Bearer good"::equals, largest, true);
                        channel.pipeline().addLast(new Gate(house, judge));
                        channel.pipeline().addLast(new Answering(house));
                    }
                });
        Channel listening = server.bind("127.0.0.1", 0).sync().channel();
        System.out.println(((InetSocketAddress) listening.localAddress()).getPort());
        listening.closeFuture().sync();
    }

    private static final class Answering extends SimpleChannelInboundHandler<FullHttpRequest> {
        private final Gatehouse house;

        Answering(Gatehouse house) {
            this.house = house;
        }

        @Override
        protected void channelRead0(ChannelHandlerContext context, FullHttpRequest request) {
            if (request.uri().endsWith("/drain")) {
                house.drain();
            }
            if (request.uri().endsWith("/release")) {
                for (Runnable held = HELD.poll(); held != null; held = HELD.poll()) {
                    held.run();
                }
            }
            String wait = request.uri().replaceAll("\\D", "");
            boolean held = request.uri().endsWith("/held");
            String text = (held ? HELD.size() : length(request)) + " " + request.headers().get("describe");
            boolean full = request.uri().endsWith("/full");
            if (request.uri().endsWith("/hold")) {
                HELD.add(() -> context.executor().execute(() -> answer(context, false, text)));
                return;
            }
            context.executor()
                    .schedule(
                            () -> answer(context, full, text),
                            wait.isEmpty() ? 0 : Long.parseLong(wait),
                            TimeUnit.MILLISECONDS);
        }

        /** Of the body, or of a form's fields together, read as TorchServe reads them. */
        private static int length(FullHttpRequest request) {
            if (!HttpPostRequestDecoder.isMultipart(request)) {
                return NettyUtils.getBytes(request.content()).length;
            }
            HttpPostRequestDecoder form = new HttpPostRequestDecoder(new DefaultHttpDataFactory(1 << 24), request);
            int bytes = 0;
            try {
                while (form.hasNext()) {
                    bytes += NettyUtils.getFormData(form.next()).getValue().length;
                }
            } catch (HttpPostRequestDecoder.EndOfDataDecoderException end) {
                return bytes;
            } finally {
                form.destroy();
            }
            return bytes;
        }

        private void answer(ChannelHandlerContext context, boolean full, String text) {
            byte[] body = (text + " " + house.countUnanswered()).getBytes(StandardCharsets.US_ASCII);
            DefaultFullHttpResponse response =
                    new DefaultFullHttpResponse(
                            HttpVersion.HTTP_1_1,
                            full ? HttpResponseStatus.SERVICE_UNAVAILABLE : HttpResponseStatus.OK,
                            Unpooled.wrappedBuffer(body));
            HttpUtil.setContentLength(response, body.length);
            context.channel().writeAndFlush(response);
        }
    }
}
