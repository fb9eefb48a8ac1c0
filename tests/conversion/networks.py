"""Networks as people write them, after He et al. (2016), Simonyan & Zisserman (2015), Ronneberger et al. (2015)."""

import torch
import torch.nn.functional as F
from torch import nn


def conv3x3(cin, cout, stride=1):
    return nn.Conv2d(cin, cout, kernel_size=3, stride=stride, padding=1, bias=False)


class BasicBlock(nn.Module):
    def __init__(self, cin, cout, stride=1, downsample=None):
        super().__init__()
        self.conv1, self.bn1 = conv3x3(cin, cout, stride), nn.BatchNorm2d(cout)
        self.relu = nn.ReLU(inplace=True)
        self.conv2, self.bn2 = conv3x3(cout, cout), nn.BatchNorm2d(cout)
        self.downsample = downsample

    def forward(self, x):
        identity = x
        out = self.relu(self.bn1(self.conv1(x)))
        out = self.bn2(self.conv2(out))
        if self.downsample is not None:
            identity = self.downsample(x)
        out += identity
        return self.relu(out)


class ResNet18(nn.Module):
    def __init__(self, classes=10, width=64):
        super().__init__()
        self.inplanes = width
        self.conv1 = nn.Conv2d(3, width, kernel_size=7, stride=2, padding=3, bias=False)
        self.bn1 = nn.BatchNorm2d(width)
        self.relu = nn.ReLU(inplace=True)
        self.maxpool = nn.MaxPool2d(kernel_size=3, stride=2, padding=1)
        self.layer1 = self._layer(width, 1)
        self.layer2 = self._layer(2 * width, 2)
        self.layer3 = self._layer(4 * width, 2)
        self.layer4 = self._layer(8 * width, 2)
        self.avgpool = nn.AdaptiveAvgPool2d((1, 1))
        self.fc = nn.Linear(8 * width, classes)

    def _layer(self, planes, stride):
        downsample = None
        if stride != 1 or self.inplanes != planes:
            downsample = nn.Sequential(
                nn.Conv2d(self.inplanes, planes, kernel_size=1, stride=stride, bias=False), nn.BatchNorm2d(planes)
            )
        first = BasicBlock(self.inplanes, planes, stride, downsample)
        self.inplanes = planes
        return nn.Sequential(first, BasicBlock(planes, planes))

    def forward(self, x):
        x = self.maxpool(self.relu(self.bn1(self.conv1(x))))
        x = self.layer4(self.layer3(self.layer2(self.layer1(x))))
        x = torch.flatten(self.avgpool(x), 1)
        return self.fc(x)


class VGG11(nn.Module):
    def __init__(self, classes=10, width=64, hidden=4096, pooled=7):
        super().__init__()
        layers, channels = [], 3
        for step in (1, "M", 2, "M", 4, 4, "M", 8, 8, "M", 8, 8, "M"):
            if step == "M":
                layers.append(nn.MaxPool2d(kernel_size=2, stride=2))
            else:
                layers += [nn.Conv2d(channels, step * width, kernel_size=3, padding=1), nn.ReLU(inplace=True)]
                channels = step * width
        self.features = nn.Sequential(*layers)
        self.avgpool = nn.AdaptiveAvgPool2d((pooled, pooled))
        self.classifier = nn.Sequential(
            nn.Linear(channels * pooled**2, hidden), nn.ReLU(True), nn.Dropout(),
            nn.Linear(hidden, hidden), nn.ReLU(True), nn.Dropout(), nn.Linear(hidden, classes),
        )  # fmt: skip

    def forward(self, x):
        return self.classifier(torch.flatten(self.avgpool(self.features(x)), 1))


class DoubleConv(nn.Sequential):
    def __init__(self, cin, cout):
        super().__init__(
            nn.Conv2d(cin, cout, 3, padding=1), nn.BatchNorm2d(cout), nn.ReLU(),
            nn.Conv2d(cout, cout, 3, padding=1), nn.BatchNorm2d(cout), nn.ReLU(),
        )  # fmt: skip


class UNet(nn.Module):
    def __init__(self, width=8, classes=2):
        super().__init__()
        self.down1, self.down2 = DoubleConv(1, width), DoubleConv(width, 2 * width)
        self.bottom = DoubleConv(2 * width, 4 * width)
        self.up2 = nn.ConvTranspose2d(4 * width, 2 * width, 2, stride=2)
        self.join2 = DoubleConv(4 * width, 2 * width)
        self.up1 = nn.ConvTranspose2d(2 * width, width, 2, stride=2)
        self.join1 = DoubleConv(2 * width, width)
        self.head = nn.Conv2d(width, classes, 1)

    def forward(self, x):
        a = self.down1(x)
        b = self.down2(F.max_pool2d(a, 2))
        c = self.bottom(F.max_pool2d(b, 2))
        y = self.join2(torch.cat([b, self.up2(c)], dim=1))
        y = self.join1(torch.cat([a, self.up1(y)], dim=1))
        return self.head(y)


class MLP(nn.Module):
    def __init__(self):
        super().__init__()
        self.fc1, self.fc2, self.fc3 = nn.Linear(64, 100), nn.Linear(100, 50), nn.Linear(50, 10)

    def forward(self, x):
        x = x.view(x.size(0), -1)
        x = F.relu(self.fc1(x))
        x = F.dropout(x, 0.2, training=self.training)
        x = torch.relu(self.fc2(x))
        return F.softmax(self.fc3(x), dim=1)


class Everything(nn.Module):
    """Calls in forward, shared modules, in-place sums, nested lists."""

    def __init__(self):
        super().__init__()
        self.convs = nn.ModuleList(
            [nn.Conv2d(3, 6, 3, padding=1), nn.Conv2d(6, 6, 3, padding=1, padding_mode="circular")]
        )
        self.act, self.pool = nn.ReLU(), nn.AvgPool2d(2)
        self.depthwise = nn.Conv2d(6, 6, 3, padding=1, groups=6)
        self.odd = nn.Linear(24, 7)
        self.offset = nn.Parameter(torch.zeros(7))
        self.head = nn.Linear(7, 4)

    def forward(self, x):
        x = self.act(self.convs[0](x))
        y = self.act(self.convs[1](x))
        y += F.gelu(self.depthwise(x))
        x = self.pool(torch.cat((x, y), 1)).mean(dim=3)
        x = torch.add(x, 1.0)
        a, b = x.chunk(2, dim=1)
        x = F.leaky_relu(a.add(b), 0.1).flatten(1)
        x = F.elu(self.odd(x)) + self.offset
        return F.log_softmax(self.head(F.dropout(x, 0.5, self.training)), dim=-1)
